"""Whole or not: our manifests, and what frameworks really write, damaged in every way at hand."""

import contextlib
import json
import os
import pickle
import random
import subprocess
import sys
import textwrap
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cli.save import _checkpoints_at
from penstock.errors import SaveError
from penstock.interop.wire import varint
from penstock.places.stores import LocalStore
from penstock.save.check import foreign, pickles
from penstock.save.checkpoint import step_of
from penstock.save.commit import begin, commit
from penstock.save.find.formats import find
from penstock.save.manifest import CHUNK_BYTES, INSIDE, FileSum, Manifest, parse, to_json
from penstock.save.verify import BY_LENGTH, forgive, latest_valid, remember_failure, verify


def saved(root: Path, step: int, data: bytes) -> Path:
    part = begin(root, step)
    part.write("model.pt", [data])
    return commit(part)


def only(root: Path) -> Any:
    (one,) = find(LocalStore(root))
    return one


def is_whole(root: Path, level: str = "full") -> bool:
    return verify(only(root), level).is_whole


def flip(path: Path, place: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))


# Ours


def test_any_flipped_bit_zeroed_block_zero_tail_and_cut_is_found(tmp_path: Path) -> None:
    data = os.urandom(CHUNK_BYTES + 70_000)
    path = saved(tmp_path, 1, data) / "model.pt"
    chance = random.Random(1)
    for _ in range(60):
        place = chance.randrange(len(data))
        flip(path, place, bit := chance.randrange(8))
        assert not is_whole(tmp_path), place
        flip(path, place, bit)
    assert is_whole(tmp_path)
    for start in (0, 4096, CHUNK_BYTES - 4096, CHUNK_BYTES, len(data) - 4096):
        damaged = bytearray(data)
        damaged[start : start + 4096] = bytes(4096)
        path.write_bytes(damaged)
        assert not is_whole(tmp_path), start
    path.write_bytes(data[:-50_000] + bytes(50_000))
    assert not is_whole(tmp_path)
    for cut in (0, 1, len(data) - 1, CHUNK_BYTES):
        path.write_bytes(data[:cut])
        assert not is_whole(tmp_path, "sizes"), cut
    path.unlink()
    verdict = verify(only(tmp_path), "sizes")
    assert verdict.problems == ("model.pt: is missing",)


def test_a_manifest_is_cut_nowhere_unseen() -> None:
    whole = to_json(Manifest((FileSum("model.pt", 1, bytes(8)),), 1))
    assert parse(whole, "here").step == 1
    for end in range(len(whole)):
        with pytest.raises(SaveError):
            parse(whole[:end], "here")


def test_a_flipped_bit_anywhere_in_a_small_checkpoint_is_found(tmp_path: Path) -> None:
    """Every byte of the data and of the manifest, one after another."""
    folder = saved(tmp_path, 1, os.urandom(200))
    for name in ("model.pt", INSIDE):
        data = (folder / name).read_bytes()
        for place in range(len(data)):
            flip(folder / name, place, place % 8)
            assert not is_whole(tmp_path), (name, place)
            (folder / name).write_bytes(data)
    assert is_whole(tmp_path)


def test_a_sample_reads_some_and_full_reads_all(tmp_path: Path) -> None:
    saved(tmp_path, 1, bytes(3 * CHUNK_BYTES + 1))
    one = only(tmp_path)
    assert verify(one, "sizes").checked_bytes == 0
    assert verify(one, "full").checked_bytes == 3 * CHUNK_BYTES + 1
    told: list[int] = []
    verify(one, "full", lambda done, total: told.append(done))
    assert max(told) == 3 * CHUNK_BYTES + 1
    with pytest.raises(SaveError, match="no level"):
        verify(one, "deep")


# Which one


def test_the_newest_whole_one_is_chosen_and_why_not_a_newer_is_said(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    good = saved(slow, 200, b"good")
    saved(slow, 100, b"older")
    flip(saved(fast, 400, b"x" * 100) / "model.pt", 50)
    (saved(fast, 300, b"y" * 100) / "model.pt").unlink()
    choice = latest_valid(fast, slow)
    assert (choice.path, choice.step) == (good, 200)
    assert [Path(where).name for where, _ in choice.rejected] == ["step-00000400", "step-00000300"]
    assert "not what was saved" in choice.rejected[0][1]
    assert "is missing" in choice.rejected[1][1]


def test_a_clock_that_was_set_back_changes_nothing(tmp_path: Path) -> None:
    from dataclasses import replace

    from penstock.save.manifest import parse, to_json

    for step, when in ((1, 2_000_000_000), (2, 1_000_000_000)):
        path = saved(tmp_path, step, b"x") / INSIDE
        manifest = replace(parse(path.read_bytes(), ""), created_unix_ns=when * 10**9)
        path.write_bytes(to_json(manifest))
    assert latest_valid(tmp_path).step == 2


def test_a_restart_that_failed_is_remembered_until_it_is_forgiven(tmp_path: Path) -> None:
    first, second = saved(tmp_path, 1, b"1"), saved(tmp_path, 2, b"2")
    choice = latest_valid(tmp_path)
    assert choice.path == second
    remember_failure(choice.checkpoint, "loss is nan")
    choice = latest_valid(tmp_path)
    assert choice.path == first
    assert "a restart from it failed" in choice.rejected[0][1]
    assert "loss is nan" in choice.rejected[0][1]
    assert forgive(LocalStore(tmp_path)) == 1
    assert latest_valid(tmp_path).path == second


def test_no_checkpoint_is_a_choice_too_and_a_missing_tier_no_end(tmp_path: Path) -> None:
    assert latest_valid(tmp_path / "none", tmp_path / "neither").path is None
    path = saved(tmp_path, 1, b"1")
    choice = latest_valid(tmp_path, "sftp://nobody@127.0.0.1:1/x") if _has_paramiko() else None
    if choice is not None:
        assert choice.path == path


def _has_paramiko() -> bool:
    try:
        import paramiko  # noqa: F401
    except ModuleNotFoundError:
        return False
    return False  # a URL that cannot be opened is refused before any tier is looked at


def test_a_list_of_failures_that_was_damaged_keeps_nobody_from_starting(tmp_path: Path) -> None:
    path = saved(tmp_path, 1, b"1")
    (tmp_path / ".penstock").mkdir(exist_ok=True)
    for text in ("", "[]", "{", "[" * 100_000):
        (tmp_path / ".penstock" / "failed-restarts.json").write_text(text)
        assert latest_valid(tmp_path).path == path


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-00001000", 1000), ("step-00001000.2", 1000), ("checkpoint-500", 500),
        ("epoch=3-step=1200.ckpt", 1200), ("global_step77", 77), ("iter_0000100", 100),
        ("ckpt-12", 12), ("model.ckpt-31", 31), ("1000", 1000), ("last.ckpt", None),
        ("runs/3/best.pt", None), ("epoch_9.pt", 9), ("model-00001-of-00004.safetensors", None),
        ("weights.0042.weights.h5", 42), ("9" * 30, None), ("resnet50-0676ba61.pth", None),
        ("resnet50.pth", None), ("fold2_best.pth", None), ("latest-rank0.pt", None),
    ],
)  # fmt: skip
def test_the_step_is_told_by_the_name(name: str, step: int | None) -> None:
    assert step_of(name) == step


def test_a_folder_full_of_other_things_holds_no_checkpoint(tmp_path: Path) -> None:
    for name in ("data/img-1.jpg", "x.index", "notes.txt", "config.json", "a/b/.hidden.pt",
                 ".cache/model.pt.tmp", "tmp-checkpoint-5/x"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"something")
    assert find(LocalStore(tmp_path)) == []


# Frameworks.  Each writes what it writes; then it is damaged.


def damages(path: Path, n: int, seed: int = 0) -> Iterator[tuple[str, int]]:
    """The file with a flipped bit in its data, n times, and as it was between."""
    data = path.read_bytes()
    chance = random.Random(seed)
    for _ in range(n):
        place = chance.randrange(len(data))
        flip(path, place, chance.randrange(8))
        yield "bit", place
        path.write_bytes(data)


def cuts(path: Path) -> Iterator[int]:
    data = path.read_bytes()
    for cut in (0, 1, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:cut])
        yield cut
    path.write_bytes(data)


@pytest.fixture(scope="session")
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


def _state(torch: Any) -> dict[str, Any]:
    return {
        "model": {f"layer{n}": torch.randn(64, 64) for n in range(6)},
        "optim": {"step": 3, "lr": 0.1, "moments": [torch.randn(1000), torch.ones(10).bool()]},
    }


def test_torch_files_are_judged_by_their_own_crc(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "epoch=1-step=10.ckpt"
    torch.save(_state(torch), path)
    one = only(tmp_path)
    assert (one.kind, one.step) == ("torch", 10)
    verdict = verify(one, "full")
    assert verdict.is_whole
    assert verdict.checked_bytes > 6 * 64 * 64 * 4
    records = _record_places(path)
    harmless = 0
    for what, place in damages(path, 60):
        is_found = not is_whole(tmp_path)
        is_payload = any(start <= place < end for start, end in records)
        assert is_found or not is_payload, (what, place)
        harmless += not is_found
    assert harmless < 45
    for cut in cuts(path):
        assert not is_whole(tmp_path, "sizes"), cut
    data = path.read_bytes()
    path.write_bytes(bytes(len(data)))
    assert not is_whole(tmp_path, "sizes")


def _record_places(path: Path) -> list[tuple[int, int]]:
    import struct
    import zipfile

    places = []
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            file.seek(info.header_offset + 26)
            name, extra = struct.unpack("<HH", file.read(4))
            start = info.header_offset + 30 + name + extra
            places.append((start, start + info.file_size))
    return places


def test_torch_files_without_crc_are_not_called_damaged(torch: Any, tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(_state(torch), tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    verdict = verify(only(tmp_path), "full")
    assert verdict.is_whole
    assert verdict.remarks == ("written without CRC-32: content not checked",)
    assert verdict.unprotected_bytes > 0
    assert verdict.checked_bytes == 0


def test_dcp_without_crc_is_counted_as_unprotected(torch: Any, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    state = {"w": torch.randn(10_000), "none": torch.zeros(0)}
    counted = {}
    for has_crc in (False, True):
        torch.serialization.set_crc32_options(has_crc)
        try:
            dcp.save(state, checkpoint_id=tmp_path / f"{has_crc}" / "step-1", no_dist=True)
        finally:
            torch.serialization.set_crc32_options(True)
        verdict = verify(only(tmp_path / f"{has_crc}"), "full")
        assert verdict.is_whole
        counted[has_crc] = verdict.checked_bytes, verdict.unprotected_bytes
        assert bool(verdict.remarks) != has_crc
    assert counted[False][0] == 0
    assert counted[False][1] >= 40_000
    assert counted[True][0] >= 40_000
    assert counted[True][1] == 0


def test_old_torch_files_are_said_to_be_unprotected(torch: Any, tmp_path: Path) -> None:
    torch.save(_state(torch), tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    verdict = verify(only(tmp_path), "full")
    assert verdict.is_whole
    assert (verdict.state, verdict.checked_bytes) == (BY_LENGTH, 0)
    assert "before torch 1.6" in verdict.remarks[0]


def test_dcp_folders_are_judged_by_metadata_and_the_crc_of_every_slice(
    torch: Any, tmp_path: Path
) -> None:
    import torch.distributed.checkpoint as dcp

    root = tmp_path / "run"
    dcp.save(_state(torch), checkpoint_id=root / "step-5")
    one = only(root)
    assert (one.kind, one.step) == ("dcp", 5)
    assert verify(one, "full").is_whole
    slices = foreign.dcp_slices((root / "step-5" / ".metadata").read_bytes())
    reference = pickle.loads((root / "step-5" / ".metadata").read_bytes())  # torch's own way
    assert sorted((s.path, s.offset, s.length) for s in slices) == sorted(
        (info.relative_path, info.offset, info.length) for info in reference.storage_data.values()
    )
    (data,) = (root / "step-5").glob("*.distcp")
    payload = [
        (s.offset + start, s.offset + end)
        for s in slices
        for start, end in _slice_records(data, s.offset, s.length)
    ]
    for what, place in damages(data, 40):
        if any(start <= place < end for start, end in payload):
            assert not is_whole(root), (what, place)
    for cut in cuts(data):
        assert not is_whole(root, "sizes"), cut
    metadata = root / "step-5" / ".metadata"
    for cut in cuts(metadata):
        assert not is_whole(root, "sizes"), cut
    metadata.unlink()
    assert verify(only(root), "sizes").problems == ("no .metadata: the save did not end",)


def _slice_records(path: Path, offset: int, length: int) -> list[tuple[int, int]]:
    copy = path.with_name("slice.tmp")
    copy.write_bytes(path.read_bytes()[offset : offset + length])
    try:
        return _record_places(copy)
    finally:
        copy.unlink()


def test_nothing_in_a_metadata_file_is_executed(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path}/executed",)

    folder = tmp_path / "run" / "step-1"
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(b"x")
    (folder / ".metadata").write_bytes(pickle.dumps({"storage_data": Evil()}))
    assert not is_whole(tmp_path / "run")
    assert not (tmp_path / "executed").exists()


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_as_metadata_end_in_a_finding(data: bytes) -> None:
    for start in (b"", b"\x80\x04", b"\x80\x04}("):
        with contextlib.suppress(foreign.Damage):
            foreign.dcp_slices(start + data)


def test_a_million_pieces_of_a_metadata_file_stay_far_within_its_bounds(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a few thousand: what is bounded is what a byte may need."""
    from torch.distributed.checkpoint import metadata as kinds
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    monkeypatch.setattr(pickles, "SOME", 0)
    for n_pieces in (1, 8, 64):
        tensors, places = {}, {}
        for number in range(4096 // n_pieces):
            name = f"model.layers.{number}.wq"
            chunks = []
            for rank in range(n_pieces):
                offsets = torch.Size([rank, 0])
                chunks.append(kinds.ChunkStorageMetadata(offsets, torch.Size([1, 4096])))
                index = kinds.MetadataIndex(name, offsets, 0)
                places[index] = _StorageInfo(f"__{rank}_0.distcp", number << 20, 1 << 20)
            facts = kinds.TensorProperties(dtype=torch.bfloat16)
            size = torch.Size([n_pieces, 4096])
            tensors[name] = kinds.TensorStorageMetadata(facts, size, chunks)
        made = kinds.Metadata(tensors, {name: ("model", name) for name in tensors}, places)
        slices = foreign.dcp_slices(pickle.dumps(made))
        assert [(one.path, one.offset, one.length) for one in slices] == [
            (one.relative_path, one.offset, one.length) for one in places.values()
        ]


class Told:
    """An object with these attributes, for a pickle."""

    def __init__(self, **facts: Any) -> None:
        self.__dict__ = facts


HOSTILE = {
    "mappings": b"}" * 100_000, "marks": b"(" * 100_000, "nothing": b"N" * 100_000,
    "kept mappings": b"}\x940" * 33_000, "kept nothing": b"N" + b"\x94" * 100_000,
    "objects": b"N" + b"22\x81" * 30_000, "pairs": b"}" + b"(NNNNNNNNu" * 10_000,
    "tuples": b"}}\x86\x940" * 20_000,
    "copies": b"}\x94(" + b"NN" * 500 + b"u0" + b"h\x00" * 50_000,
    "far memos": b"Nr\xff\xff\xff\x7f",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_needs_more_than_metadata_of_its_length_is_refused_with_the_limit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickles, "SOME", 100)
    monkeypatch.setattr(pickles, "MOST_DEPTH", 1000)
    data = b"\x80\x04" + HOSTILE[name] + b"."
    tracemalloc.start()
    try:
        with pytest.raises(foreign.Damage, match=r"\.metadata: (more than [\d,]+|its values)"):
            foreign.dcp_slices(data)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(data) + 2_000_000
    finally:
        tracemalloc.stop()


def nested(depth: int) -> bytes:
    """Mappings that hold the one before twice, by a name that is asked for again and again."""
    pairs = (b"}\x94(" + (b"Nh" + bytes([level])) * 2 + b"u0" for level in range(depth))
    return b"}\x94" + b"".join(pairs) + b"Nh" + bytes([depth])


@pytest.mark.parametrize(
    "data",
    [
        nested(100) + b"\x93",
        b"}\x94(" + b"h\x00" * 50_000 + b"t\x94N" + b"h\x01b" * 50_000,
    ],
    ids=["a class named by mappings", "the same attributes again and again"],
)
def test_what_a_small_metadata_file_refers_to_again_and_again_costs_no_more_than_its_length(
    data: bytes,
) -> None:
    begin_s = time.process_time()
    with pytest.raises(foreign.Damage, match="knows nothing of storage"):
        foreign.dcp_slices(b"\x80\x04" + data + b".")
    assert time.process_time() - begin_s < 10


def test_a_metadata_file_that_is_too_large_or_names_bytes_again_and_again_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run" / "step-1"
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(b"PK" * 500)
    for offsets, why in (
        ([0] * 20, ".metadata: names 18,000 bytes in files of "),
        ([1 << 70], "an item without a place"),
        ([1 << 40], "knows data up to 1,099,511,628,676"),
    ):
        places = enumerate(offsets)
        made = Told(storage_data={
            number: Told(relative_path="__0_0.distcp", offset=offset, length=900)
            for number, offset in places
        })  # fmt: skip
        (folder / ".metadata").write_bytes(pickle.dumps(made))
        assert why in verify(only(tmp_path / "run"), "full").problems[0]
    monkeypatch.setattr("penstock.save.verify.MOST_METADATA_BYTES", 100)
    assert "more than 100 are not read" in verify(only(tmp_path / "run"), "sizes").problems[0]


@settings(max_examples=200, deadline=None)
@given(
    said=st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.booleans()),
    protocol=st.integers(0, pickle.HIGHEST_PROTOCOL),
    kind=st.sampled_from([dict, OrderedDict]),
)
def test_what_a_pickle_says_at_its_top_is_read_without_unpickling(
    said: dict[str, Any], protocol: int, kind: Any
) -> None:
    data = pickle.dumps(kind(said, more=[1, (2.5, b"x")]), protocol)
    read = dict(pickles.pairs_of(pickles.inert(data, ())))
    assert read.pop("more") is pickles.OTHER
    small = {key: one for key, one in said.items() if key != "more"}
    for key, one in small.items():
        is_huge = isinstance(one, int) and not -(1 << 49) < one < 1 << 49
        assert read[key] == one or (is_huge and read[key] is pickles.OTHER)
    assert read.keys() == small.keys()


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=120))
def test_any_bytes_as_an_index_end_in_a_finding(data: bytes) -> None:
    footer = data[:40].ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
    for index in (data, data + footer):
        with contextlib.suppress(foreign.Damage):
            foreign.tf_entries(index)


def test_safetensors_have_sizes_only_and_the_verdict_says_so(torch: Any, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    path = tmp_path / "model-7.safetensors"
    safetensors.save_file({"a": torch.randn(100, 10), "b": torch.ones(5).half()}, path)
    verdict = verify(only(tmp_path), "full")
    assert verdict.is_whole
    assert (verdict.state, verdict.unprotected_bytes) == (BY_LENGTH, path.stat().st_size)
    for cut in cuts(path):
        assert not is_whole(tmp_path, "sizes"), cut
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    data = path.read_bytes()
    for place in range(8):
        flip(path, place, 1)
        assert not is_whole(tmp_path, "sizes"), place
        path.write_bytes(data)
    path.write_bytes(data[:header] + bytes(len(data) - header) + b"more")
    assert not is_whole(tmp_path, "sizes")


def test_a_tail_that_was_never_written_is_found_without_any_checksum(
    torch: Any, tmp_path: Path
) -> None:
    """As delayed allocation leaves it after a power cut: the length is there, not the blocks."""
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    path = tmp_path / "model-7.safetensors"
    safetensors.save_file({"a": torch.randn(100_000)}, path)
    size = path.stat().st_size
    os.truncate(path, size // 2)
    os.truncate(path, size)
    with path.open("rb") as file:
        try:
            is_told = os.lseek(file.fileno(), size - 1, os.SEEK_DATA) is None
        except OSError:
            is_told = True
    if not is_told:
        pytest.skip("this file system does not tell holes")
    assert "never written" in verify(only(tmp_path), "sizes").problems[0]


def test_hugging_face_folders_are_whole_when_every_shard_is(torch: Any, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    folder = tmp_path / "checkpoint-500"
    folder.mkdir()
    for n in (1, 2):
        safetensors.save_file(
            {f"w{n}": torch.randn(50)}, folder / f"model-0000{n}-of-00002.safetensors"
        )
    shards = {f"w{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / "trainer_state.json").write_text('{"global_step": 500}')
    torch.save({"m": torch.randn(50)}, folder / "optimizer.pt")
    one = only(tmp_path)
    assert (one.kind, one.step) == ("hf", 500)
    assert verify(one, "full").is_whole
    for name in ("optimizer.pt", "trainer_state.json", "model-00002-of-00002.safetensors"):
        for cut in cuts(folder / name):
            assert not is_whole(tmp_path, "sizes"), (name, cut)
    (folder / "model-00001-of-00002.safetensors").unlink()
    lost = "is missing: model-00001-of-00002.safetensors"
    assert verify(only(tmp_path), "sizes").problems == (lost,)


def test_a_trainers_folder_holds_a_model_and_checkpoints_beside_it(tmp_path: Path) -> None:
    out = tmp_path / "output"
    for folder in (out, out / "checkpoint-10", out / "checkpoint-20"):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        if folder != out:
            (folder / "trainer_state.json").write_text("{}")
    found = {one.name: len(one.files) for one in find(LocalStore(tmp_path))}
    assert found == {"output": 2, "output/checkpoint-10": 3, "output/checkpoint-20": 3}


def test_what_other_programs_call_bin_and_pth_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "en-de").mkdir()  # CTranslate2: weights in no container, some begin with zeros
    (tmp_path / "en-de" / "config.json").write_text("{}")
    (tmp_path / "en-de" / "model.bin").write_bytes(bytes(8) + b"\x06\0\0\0" + b"spec" * 100)
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "distutils-precedence.pth").write_text("import os; enabled = 'x'\n")
    [one] = find(LocalStore(tmp_path))
    verdict = verify(one, "full")
    assert (one.name, verdict.problems, verdict.unprotected_bytes) == ("en-de", (), 412)
    for name in ("pytorch_model.bin", "optimizer_0.bin"):  # torch's names
        other = tmp_path / "en-de" / name
        other.write_bytes(b"spec" * 100)
        assert f"{name}: cut or damaged" in verify(only(tmp_path), "full").problems
        other.unlink()
    archive(tmp_path / "en-de" / "model.bin")
    assert is_whole(tmp_path, "full")
    with (tmp_path / "en-de" / "model.bin").open("r+b") as file:
        file.write(b"XXXX")  # its end tells what it was
    assert "model.bin: cut or damaged" in verify(only(tmp_path), "full").problems
    (tmp_path / "w.pth").write_bytes(bytes(100))  # never written: no text
    assert any(one.name == "w.pth" for one in find(LocalStore(tmp_path)))


def trained(root: Path, *names: str) -> None:
    """A Trainer's files without torch: called as its own, and whole by their formats."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".safetensors"):
            path.write_bytes((2).to_bytes(8, "little") + b"{}")
        elif name.endswith(".json"):
            path.write_text("{}")
        else:
            archive(path)


def archive(path: Path, **numbers: int) -> None:
    import zipfile

    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps({"module": [1.5], **numbers}, 2))
        file.writestr("archive/version", "3\n")


MODEL = ("config.json", "model.safetensors")


def test_a_trainers_checkpoint_that_was_not_ended_is_not_whole(tmp_path: Path) -> None:
    rest = ("optimizer.pt", "scheduler.pt", "trainer_state.json")
    trained(tmp_path / "checkpoint-500", *MODEL, *rest)
    for there in (MODEL, (*MODEL, "optimizer.pt"), ("config.json",)):
        trained(tmp_path / "checkpoint-1000", *there)
        choice = latest_valid(tmp_path, level="full")
        assert choice.step == 500, there
        assert "no trainer_state.json" in choice.rejected[0][1]
    trained(tmp_path / "checkpoint-1000", *MODEL, *rest)
    assert latest_valid(tmp_path, level="full").step == 1000
    (tmp_path / "checkpoint-1000" / "optimizer.pt").unlink()
    choice = latest_valid(tmp_path, level="full")
    assert choice.step == 500
    assert choice.rejected[0][1] == "no optimizer.pt, which checkpoint-500 beside it has"


def test_one_folder_is_verified_without_a_look_at_those_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        saved(tmp_path, step, b"x")
    rest = ("optimizer.pt", "scheduler.pt", "trainer_state.json")
    trained(tmp_path / "checkpoint-500", *MODEL, *rest)
    trained(tmp_path / "checkpoint-1000", *MODEL, *rest[1:])
    seen: list[str] = []
    scandir = os.scandir

    def watched(path: Any) -> Any:
        seen.append(os.fspath(path))
        return scandir(path)

    monkeypatch.setattr("penstock.places.stores.os.scandir", watched)
    [one], is_one = _checkpoints_at(f"{tmp_path}/step-00000001")
    assert (one.step, is_one) == (1, True)
    assert set(seen) == {f"{tmp_path}/step-00000001"}
    [one], is_one = _checkpoints_at(f"{tmp_path}/checkpoint-1000/")
    assert one.problem == "no optimizer.pt, which checkpoint-500 beside it has"
    found, is_one = _checkpoints_at(f"{tmp_path}")
    assert (len(found), is_one) == (4, False)


def test_models_of_another_program_are_no_unfinished_checkpoints(tmp_path: Path) -> None:
    for name in ("checkpoint-1", "checkpoint-2"):  # model.save_pretrained(name)
        trained(tmp_path / name, *MODEL)
    assert latest_valid(tmp_path, level="full").step == 2
    trained(tmp_path / "output", *MODEL)
    assert all(verify(one).is_whole for one in find(LocalStore(tmp_path)))
    trained(tmp_path / "output" / "checkpoint-9", *MODEL)  # of a Trainer, which was killed
    found = {one.name: (len(one.files), one.problem) for one in find(LocalStore(tmp_path))}
    assert found["output"] == (2, "")
    assert found["output/checkpoint-9"][1]


def test_dcp_below_hugging_face_is_judged_as_dcp(torch: Any, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    folder = tmp_path / "checkpoint-10"
    for part in ("pytorch_model_fsdp_0", "optimizer_0"):
        dcp.save({"w": torch.randn(500)}, checkpoint_id=folder / part, no_dist=True)
    trained(folder, "trainer_state.json")
    verdict = verify(only(tmp_path), "full")
    assert (verdict.checkpoint.kind, verdict.problems) == ("hf", ())
    assert verdict.checked_bytes >= 4000
    part = folder / "optimizer_0"
    (data,) = part.glob("*.distcp")
    for path in (data, part / ".metadata"):
        for cut in cuts(path):
            assert not is_whole(tmp_path, "sizes"), (path, cut)
        content = path.read_bytes()
        path.unlink()
        assert f"optimizer_0/{path.name}" in verify(only(tmp_path), "sizes").problems[0]
        path.write_bytes(content)
    assert is_whole(tmp_path)
    (part / ".metadata").write_bytes(b"garbage, not a pickle")
    assert not is_whole(tmp_path, "sizes")


@pytest.mark.parametrize("root", ["global_step10", "checkpoint-10/global_step10"])
def test_deepspeed_has_a_file_of_each_rank(torch: Any, tmp_path: Path, root: str) -> None:
    folder = tmp_path / root
    folder.mkdir(parents=True)
    if "/" in root:
        trained(folder.parent, "trainer_state.json")
    model = folder / "mp_rank_00_model_states.pt"
    torch.save({"module": {"w": torch.ones(3)}, "dp_world_size": 4, "mp_world_size": 1}, model)
    optims = [folder / f"bf16_zero_pp_rank_{n}_mp_rank_00_optim_states.pt" for n in range(4)]
    for path in optims:
        archive(path)
    assert is_whole(tmp_path)
    for gone in ((2,), (3,), (1, 2, 3), (0, 1, 2)):
        for rank in gone:
            optims[rank].unlink()
        problem = verify(only(tmp_path), "sizes").problems[0]
        assert f"bf16_zero_pp_rank_{gone[0]}_mp_rank_00_optim_states.pt: is missing" in problem
        for rank in gone:
            archive(optims[rank])
    model.unlink()
    if "/" not in root:
        assert "mp_rank_00_model_states.pt: is missing" in verify(only(tmp_path)).problems[0]
    archive(model)  # tells no number
    assert is_whole(tmp_path)
    # Shapes of parameters are told where the optimizer's state lies in files of its own.
    for path in optims:
        path.unlink()
    assert is_whole(tmp_path)
    for shapes, is_good in ((None, True), ([{"w": torch.Size([3])}], False)):
        torch.save({"module": {}, "optimizer": None, "param_shapes": shapes}, model)
        assert is_whole(tmp_path, "sizes") == is_good, shapes
    # Two groups of tensor parallelism, stage 3: a model's and an optimizer's file of each rank.
    for path in folder.iterdir():
        path.unlink()
    for mp_rank in (0, 1):
        for rank in (0, 1):
            for kind in ("model", "optim"):
                name = f"zero_pp_rank_{rank}_mp_rank_{mp_rank:02d}_{kind}_states.pt"
                archive(folder / name, dp_world_size=2)
    assert is_whole(tmp_path)
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        path.unlink()
        assert not is_whole(tmp_path, "sizes"), path.name
        path.write_bytes(content)


MADE = """
    import sys, os
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["JAX_PLATFORMS"] = "cpu"
    root = sys.argv[1]
"""


def made_by(source: str, root: Path) -> None:
    """In a process of its own: frameworks do not like each other."""
    program = textwrap.dedent(MADE) + textwrap.dedent(source)
    finished = subprocess.run([sys.executable, "-c", program, root], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-3000:]


def test_tensorflow_checkpoints_are_judged_by_their_own_crc(tmp_path: Path) -> None:
    pytest.importorskip("crc32c", reason="crc32c is not installed")
    if not _has("tensorflow"):
        pytest.skip("tensorflow is not installed")
    made_by(
        """
        import tensorflow as tf
        made = tf.train.Checkpoint(
            a=tf.Variable(tf.random.normal([64, 64])), b=tf.Variable(["texts", "of", "any length"]),
            n=tf.Variable(3, dtype=tf.int64))
        manager = tf.train.CheckpointManager(made, root, max_to_keep=3)
        manager.save(checkpoint_number=12)
        """,
        tmp_path / "run",
    )
    root = tmp_path / "run"
    one = only(root)
    assert (one.name, one.kind, one.step) == ("ckpt-12", "tensorflow", 12)
    verdict = verify(one, "full")
    assert verdict.is_whole, verdict.problems
    assert verdict.checked_bytes >= 64 * 64 * 4
    data, index = root / "ckpt-12.data-00000-of-00001", root / "ckpt-12.index"
    for _, place in damages(data, 40):
        assert not is_whole(root), place
    for _, place in damages(index, 40, seed=1):
        assert not is_whole(root) or place >= index.stat().st_size - 48, place  # footer's padding
    for path in (data, index):
        for cut in cuts(path):
            assert not is_whole(root, "sizes") or not cut, (path.name, cut)
    data.unlink()
    assert only(root).problem == "a data file is missing"


def test_orbax_steps_are_known_and_their_json_is_looked_at(tmp_path: Path) -> None:
    if not _has("orbax.checkpoint"):
        pytest.skip("orbax is not installed")
    made_by(
        """
        import jax.numpy as np
        import orbax.checkpoint as ocp
        manager = ocp.CheckpointManager(root)
        for step in (10, 20):
            state = {"w": np.arange(5000.0), "b": np.ones(3)}
            manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
        manager.close()
        """,
        tmp_path / "run",
    )
    root = tmp_path / "run"
    assert [(one.name, one.kind, one.step) for one in find(LocalStore(root))] == [
        ("20", "orbax", 20), ("10", "orbax", 10),
    ]  # fmt: skip
    assert latest_valid(root, level="full").step == 20
    jsons = list((root / "20").rglob("*METADATA"))
    assert jsons
    for path in jsons:
        data = path.read_bytes()
        path.write_bytes(b"")
        assert latest_valid(root, level="sizes").step == 10, path
        path.write_bytes(data)
    for path in (root / "20").rglob("manifest.ocdbt"):
        for cut in cuts(path):
            assert latest_valid(root, level="sizes").step == 10, (path, cut)
    for pattern in ("default/d", "default/ocdbt.process_*/d", "**/d"):
        data = {
            path: path.read_bytes() for d in (root / "20").glob(pattern) for path in d.iterdir()
        }
        assert data
        for path in data:
            path.unlink()
        assert latest_valid(root, level="sizes").step == 10, pattern
        for path, content in data.items():
            path.write_bytes(content)
    values = [path for path in (root / "20").rglob("d/*") if path.stat().st_size > 10_000]
    assert values  # of w, in one of several data files
    for path in [*values, root / "20" / "default" / "manifest.ocdbt"]:
        away = path.rename(root / "away")
        assert latest_valid(root, level="sizes").step == 10, path
        away.rename(path)
    assert latest_valid(root, level="full").step == 20
    (root / "20").rename(root / "20.orbax-checkpoint-tmp-1")
    assert latest_valid(root).step == 10


OCDBT = """
    import json, tensorstore as ts
    from pathlib import Path

    CONTEXT = ts.Context()
    DEEP, PLAIN = {"max_decoded_node_bytes": 400}, {"compression": None}

    def opened(folder, **more):
        base = {"driver": "file", "path": f"{folder}/"}
        return ts.KvStore.open({"driver": "ocdbt", "base": base, **more}, context=CONTEXT).result()

    def database(folder, config):
        config = {"max_inline_value_bytes": 20, **config}
        apart = {} if "compression" not in config else {
            "value_data_prefix": "ocdbt_data/", "btree_node_data_prefix": "ocdbt_meta/"}
        return opened(folder, config=config, target_data_file_size=3000, **apart)

    def read(folder):
        store = opened(folder)
        return {key: store.read(key).result().value for key in store.list().result()}

    def is_right(folder, whole):
        try:
            return read(folder) == whole
        except ValueError:
            return False

    told = {}
    for name, config in (("deep", DEEP), ("plain", PLAIN)):
        folder = Path(root, name)
        for n in (0, 1):
            for last in (60, 30):  # a second version leaves nodes that nobody needs
                with ts.Transaction() as transaction:
                    part = database(folder / f"ocdbt.process_{n}", config)
                    part = part.with_transaction(transaction)
                    for key in range(70 * n, 70 * n + last):
                        part[f"key {key:04d}"] = (b"%d " % (key + last)) * (1 + key % 90)
        transaction = ts.Transaction(atomic=True)
        merged = database(folder, config).with_transaction(transaction)
        for n in (0, 1):
            opened(folder / f"ocdbt.process_{n}").experimental_copy_range_to(merged).result()
        transaction.commit_sync()
        whole = read(folder)
        assert len(whole) == 120
        for path in sorted(folder.rglob("*")):
            if path.is_dir() or path.name == "manifest.ocdbt":
                continue
            data = path.read_bytes()
            path.unlink()
            is_needed = not is_right(folder, whole)
            path.write_bytes(data[:-1])
            is_needed_to_its_end = not is_right(folder, whole)
            path.write_bytes(data)
            told[str(path)] = [is_needed, is_needed_to_its_end]
        (folder / "_METADATA").write_text("{}")
    Path(root, "told.json").write_text(json.dumps(told))
"""


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of OCDBT, each made of two; of each data file told.json says whether tensorstore reads
    the same without it, and without its last byte.  (It says nothing of a file that is missing.)"""
    if not _has("tensorstore"):
        pytest.skip("tensorstore is not installed")
    root = tmp_path_factory.mktemp("ocdbt") / "run"
    made_by(OCDBT, root)
    return root


def named(root: Path, name: str) -> Any:
    return next(one for one in find(LocalStore(root)) if one.name == name)


@pytest.mark.parametrize("name", ["deep", "plain"])
def test_data_files_that_a_tree_of_ocdbt_needs_are_missed(databases: Path, name: str) -> None:
    verdict = verify(named(databases, name), "sizes")
    assert (verdict.problems, verdict.remarks) == ((), ())
    told = json.loads((databases / "told.json").read_text())
    told = {
        Path(path): needs
        for path, needs in told.items()
        if Path(path).is_relative_to(databases / name)
    }
    assert sum(is_needed for is_needed, _ in told.values()) > 4
    for path, (is_needed, is_needed_to_its_end) in told.items():
        data = path.read_bytes()
        path.unlink()
        assert verify(named(databases, name), "sizes").is_whole != is_needed, path
        path.write_bytes(data[:-1])
        assert verify(named(databases, name), "sizes").is_whole != is_needed_to_its_end, path
        path.write_bytes(data)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_bytes_as_a_tree_of_ocdbt_end_in_a_finding(databases: Path, data: Any) -> None:
    """With checksums that fit, as somebody who means harm would write them."""
    crc32c = pytest.importorskip("crc32c").crc32c
    root = databases / data.draw(st.sampled_from(["deep", "plain"]))
    sizes = {
        os.fspath(path.relative_to(root)): path.stat().st_size
        for path in root.rglob("*")
        if path.is_file()
    }
    seed, n_bytes = data.draw(st.integers(0, 1 << 32)), data.draw(st.integers(0, 6))

    def spoilt(content: bytes) -> bytes:
        chance, made = random.Random(seed), bytearray(content[:-4])
        for _ in range(n_bytes if len(made) > 12 else 0):
            made[chance.randrange(12, len(made))] = chance.choice((0, 1, 127, 255))
        return bytes(made) + crc32c(bytes(made)).to_bytes(4, "little")

    def read(name: str, offset: int, length: int) -> bytes:
        with (root / name).open("rb") as file:
            file.seek(offset)
            return spoilt(file.read(length))

    manifest = (root / "manifest.ocdbt").read_bytes()
    manifest = spoilt(manifest) if data.draw(st.booleans()) else manifest
    with contextlib.suppress(foreign.Damage):
        foreign.check_ocdbt_tree(manifest, "manifest.ocdbt", sizes, read, foreign.Scope("full"))


def test_a_tree_of_ocdbt_that_cannot_be_unpacked_here_is_said_to_be_unread(
    databases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ctypes

    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", absent)
    verdict = verify(named(databases, "deep"), "sizes")
    assert verdict.is_whole
    assert "libzstd.so.1 is not on this machine" in "".join(verdict.remarks)
    assert verify(named(databases, "plain"), "sizes").remarks == ()


def _varints(*numbers: int) -> bytes:
    return b"".join(map(varint, numbers))


def _sealed(magic: bytes, body: bytes) -> bytes:
    crc32c = pytest.importorskip("crc32c").crc32c
    made = magic + (len(body) + 18).to_bytes(8, "little") + b"\0\0" + body
    return made + crc32c(made).to_bytes(4, "little")


def _tree(node: bytes, height: int, repeats: int = 1) -> tuple[bytes, dict[str, int], Any]:
    """A manifest whose root is a node of references to another one, as many as are asked for."""
    files = _varints(1, 3, 0) + b"d/x"
    root = node
    if height:
        places = [number * len(node) for number in range(repeats)]
        keys = _varints(repeats, *[0] * (repeats - 1), *[0] * repeats, *[0] * repeats)
        root = _sealed(foreign.OCDBT_NODE, bytes([1]) + files + keys + _varints(
            *[0] * repeats, *places, *[len(node)] * repeats))  # fmt: skip
    start = repeats * len(node) if height else 0
    manifest = bytes(16) + _varints(0, 0, 0) + bytes([0]) + _varints(0) + files
    manifest += _varints(1, 1) + bytes([height]) + _varints(0, start, len(root))
    data = (node * repeats if height else b"") + root
    return (
        _sealed(foreign.OCDBT_MANIFEST, manifest),
        {"d/x": len(data)},
        lambda name, offset, length: data[offset : offset + length],
    )


def _inline(n: int) -> bytes:
    """A leaf of n keys with values of nothing, and no data file."""
    return _sealed(foreign.OCDBT_NODE, b"\0\0" + _varints(n) + bytes(max(0, n - 1) + 3 * n))


@pytest.mark.parametrize("bound", ["keys", "bytes", "nodes"])
def test_a_tree_larger_than_its_files_can_hold_is_not_followed_and_not_whole(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = foreign.Scope("full")
    names = {"keys": "SOME_KEYS", "bytes": "SOME_TREE_BYTES", "nodes": "SOME_NODES"}
    node, repeats = (_inline(100), 5) if bound != "nodes" else (_inline(0), 50)
    tree = _tree(node, 1, repeats)
    foreign.check_ocdbt_tree(tree[0], "manifest.ocdbt", *tree[1:], scope)
    assert scope.remarks == {}
    assert scope.read_bytes == len(tree[0]) + tree[1]["d/x"]
    assert scope.unprotected_bytes == -tree[1]["d/x"]
    for name in ("TREE_BYTES_A_BYTE", "KEY_BYTES", "NODE_BYTES"):
        monkeypatch.setattr(foreign, name, 0 if name == "TREE_BYTES_A_BYTE" else 1 << 40)
    foreign.check_ocdbt_tree(tree[0], "manifest.ocdbt", *tree[1:], scope)
    monkeypatch.setattr(foreign, names[bound], 40)
    with pytest.raises(foreign.Damage, match="not followed: too large"):
        foreign.check_ocdbt_tree(tree[0], "manifest.ocdbt", *tree[1:], scope)


def test_a_node_is_not_unpacked_beyond_what_its_files_can_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ctypes.util

    if ctypes.util.find_library("zstd") is None:
        pytest.skip("libzstd is not installed")
    monkeypatch.setattr(foreign, "SOME_TREE_BYTES", 1 << 20)
    # A frame of RLE blocks, 128 KiB of zeros each: 4 bytes for 128 KiB.
    blocks = [(int(last) | 1 << 1 | (128 << 10) << 3).to_bytes(3, "little") + b"\0"
              for last in [False] * 63 + [True]]  # fmt: skip
    frame = bytes.fromhex("28b52ffd") + bytes([0x00, 0x38]) + b"".join(blocks)
    assert len(foreign._unzstd(frame, "n", 1 << 30)) == 8 << 20
    with pytest.raises(foreign.Damage, match="not followed: too large"):
        foreign._unzstd(frame, "n", 1 << 20)


def _has(name: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_a_keras_file_is_a_zip_and_judged_as_one(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "model-3.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", os.urandom(10_000))
    assert is_whole(tmp_path)
    flip(path, 5000)
    assert not is_whole(tmp_path)
    path.write_bytes(b"no zip at all, and long enough to be one")
    assert not is_whole(tmp_path, "sizes")
