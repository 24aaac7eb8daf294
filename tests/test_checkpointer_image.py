"""Files that are laid out in memory are those of the formats: torch, zipfile and safetensors read
them, and judge."""

import io
import mmap
import zipfile
import zlib
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SaveError
from penstock.save.manifest import CHUNK_BYTES, checksum
from penstock.save.training import image as images
from penstock.save.training.image import (
    arrays_layout,
    zip_directory,
    zip_header,
    zip_layout,
    zip_tail,
)
from penstock.save.training.imagefile import Image, write_image
from penstock.save.training.lost import RETRIED_AFTER, Cheaper, lost_s
from penstock.save.training.snapshot import ArraySnapshot, TorchSnapshot, size_of

torch = pytest.importorskip("torch", reason="the snapshot of torch's tensors needs torch")


@given(st.lists(st.integers(0, 3000), max_size=12), st.binary(max_size=300))
@settings(max_examples=40, deadline=None)
def test_any_sizes_make_a_zip_that_zipfile_reads(sizes: list[int], pickled: bytes) -> None:
    layout = zip_layout(sizes)
    memory = bytearray(layout.size_bytes)
    expected = {}
    for record, size in zip(layout.records, sizes, strict=True):
        content = bytes([size % 251]) * size
        memory[record.offset : record.offset + size] = content
        memory[record.header : record.offset] = zip_header(record, zlib.crc32(content))
        expected[record.name] = content
        assert record.offset % 64 == 0
    sums = [zlib.crc32(expected[record.name]) for record in layout.records]
    tail, placed = zip_tail(len(memory), pickled, zlib.crc32)
    directory = zip_directory(
        len(memory) + len(tail), [*zip(layout.records, sums, strict=True), *placed]
    )
    with zipfile.ZipFile(io.BytesIO(bytes(memory) + tail + directory)) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in expected} == expected
        assert archive.read("archive/data.pkl") == pickled


def test_records_past_four_gigabytes_say_so_in_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "LIMIT", 1000)  # the same fields, without the gigabytes
    layout = zip_layout([10, 2000, 30])
    memory = bytearray(layout.size_bytes)
    for record in layout.records:
        zeros = bytes(record.n_bytes)
        memory[record.header : record.offset] = zip_header(record, zlib.crc32(zeros))
    entries = [(record, zlib.crc32(bytes(record.n_bytes))) for record in layout.records]
    directory = zip_directory(len(memory), entries)
    # What zipfile looks into the wide fields for is a field of all ones.
    assert b"PK\x06\x06" in directory
    wide = [record for record in layout.records if record.n_bytes >= 1000]
    assert len(wide) == 1
    header = bytes(memory[wide[0].header : wide[0].offset])
    assert (2000).to_bytes(8, "little") * 2 in header


def taken(state: Any, folder: Path, snapshot: TorchSnapshot | None = None) -> Path:
    """The file of a state, written as the writer does."""
    snapshot = snapshot or TorchSnapshot()
    found = snapshot.take(state)
    image = Image.of_zip(found.arena.memory, list(found.sizes), snapshot.pickled(found))
    path = folder / f"{len(list(folder.iterdir()))}.pt"
    noted = write_image(str(path), image, path.name)
    content = path.read_bytes()
    chunks = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
    assert noted.size_bytes == len(content)
    assert noted.sums == b"".join(map(checksum, chunks))
    return path


def assert_same(mine: Any, theirs: Any) -> None:
    assert type(mine) is type(theirs)
    if isinstance(mine, torch.Tensor):
        assert (mine.dtype, mine.shape, mine.stride(), mine.requires_grad) == (
            theirs.dtype, theirs.shape, theirs.stride(), theirs.requires_grad,
        )  # fmt: skip
        if mine.dtype.itemsize == 1:  # floats of 8 bits know no equality
            mine, theirs = mine.view(torch.uint8), theirs.view(torch.uint8)
        assert torch.equal(mine, theirs)
    elif isinstance(mine, dict):
        assert list(mine) == list(theirs)
        assert getattr(mine, "__dict__", None) == getattr(theirs, "__dict__", None)
        for key in mine:
            assert_same(mine[key], theirs[key])
    elif isinstance(mine, list | tuple):
        assert len(mine) == len(theirs)
        for pair in zip(mine, theirs, strict=True):
            assert_same(*pair)
    else:
        assert mine == theirs


def training_state() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(50, 40), torch.nn.BatchNorm1d(40))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 50)).sum().backward()
    optimizer.step()
    tied = torch.randn(6, 6)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "tied": [tied, tied, tied.t(), tied[2:4, ::2]],
        "kinds": [torch.randn(7).to(kind) for kind in (torch.bfloat16, torch.float8_e4m3fn)],
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "plain": (1, 2.5, None, "text", True, b"bytes"),
        "random": torch.get_rng_state(),
    }


@pytest.mark.parametrize("is_mapped", [False, True])
def test_torch_load_gives_back_what_torch_save_would_have(tmp_path: Path, is_mapped: bool) -> None:
    state = training_state()
    path = taken(state, tmp_path)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    found = torch.load(path, weights_only=True, mmap=is_mapped)
    assert_same(torch.load(buffer, weights_only=True), found)
    assert zipfile.ZipFile(path).testzip() is None


def test_tensors_that_share_bytes_share_them_in_the_file(tmp_path: Path) -> None:
    whole = torch.arange(1000.0)
    path = taken({"a": whole, "b": whole, "part": whole[10:20]}, tmp_path)
    assert path.stat().st_size < 6000  # 4,000 of numbers, once
    found = torch.load(path, weights_only=True)
    pointers = {found[key].untyped_storage().data_ptr() for key in found}
    assert len(pointers) == 1
    assert torch.equal(found["part"], whole[10:20])


def test_what_is_refused_in_a_state_of_other_shapes_is_named_too(tmp_path: Path) -> None:
    snapshot = TorchSnapshot()
    taken({"w": torch.zeros(10)}, tmp_path, snapshot)
    sparse = torch.zeros(3).to_sparse()
    with pytest.raises(SaveError, match=r"state\['x'\]: a tensor without a plain storage"):
        snapshot.take({"w": torch.zeros(11), "x": sparse})


def test_the_second_snapshot_reuses_the_arena_and_holds_the_new_numbers(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": torch.zeros(100), "step": 1, "inner": {"list": [torch.ones(3)]}}
    snapshot = TorchSnapshot()
    first = taken(state, tmp_path, snapshot)
    state["w"] += 5
    state["step"] = 2
    again = snapshot.take(state)
    assert not again.is_new
    second = taken(state, tmp_path, snapshot)
    assert torch.load(first, weights_only=True)["step"] == 1
    found = torch.load(second, weights_only=True)
    assert found["step"] == 2
    assert torch.equal(found["w"], torch.full((100,), 5.0))


@pytest.mark.parametrize("n", [0, 3, 200])
def test_a_state_of_other_shapes_makes_another_arena(tmp_path: Path, n: int) -> None:
    snapshot = TorchSnapshot()
    taken({"w": torch.zeros(100)}, tmp_path, snapshot)
    other = {"w": torch.arange(float(n)), "more": torch.ones(2, 2).t()}
    found = torch.load(taken(other, tmp_path, snapshot), weights_only=True)
    assert_same(found["w"], other["w"])
    smaller = {"w": torch.arange(float(n))}  # fewer things in the same order
    assert list(torch.load(taken(smaller, tmp_path, snapshot), weights_only=True)) == ["w"]


def test_what_changes_after_take_is_not_in_the_snapshot() -> None:
    state: dict[str, Any] = {"w": torch.zeros(4), "history": [1, 2], "set": {3}}
    snapshot = TorchSnapshot()
    found = snapshot.take(state)
    state["w"].fill_(9)
    state["history"].append(3)
    state["set"].add(4)
    assert found.rest["history"] == [1, 2]
    assert found.rest["set"] == {3}
    assert torch.equal(found.rest["w"], torch.zeros(4))


class Devices:
    """Stands in for two GPUs: says of tensors in memory that they are on them.  result: of CUDA's
    call that pins memory."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, places: dict[int, int], result: int
    ) -> None:
        self.synchronized: list[str] = []
        self.pinned: list[int] = []
        self.result = result
        monkeypatch.setattr(torch.Tensor, "get_device", lambda one: places.get(one.data_ptr(), -1))
        monkeypatch.setattr(
            torch.UntypedStorage,
            "device",
            property(lambda one: f"cuda:{places[one.data_ptr()]}"),
        )
        monkeypatch.setattr(torch.accelerator, "synchronize", self.synchronized.append)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)
        ones = torch.ones
        monkeypatch.setattr(torch, "ones", lambda *shape, device=None: ones(*shape))

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:  # noqa: N802
        if not self.result:
            self.pinned.append(address)
        return self.result

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.pinned.remove(address)
        return 0


@pytest.mark.parametrize("result", [0, 2])
def test_each_device_is_awaited_and_memory_that_cannot_be_pinned_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, result: int
) -> None:
    state = {"a": torch.ones(3), "b": torch.full((4,), 2.0), "c": torch.zeros(2)}
    places = {state["a"].data_ptr(): 0, state["b"].data_ptr(): 1}
    devices = Devices(monkeypatch, places, result)
    snapshot = TorchSnapshot()
    taken = snapshot.take(state)
    assert devices.synchronized == ["cuda:0", "cuda:1"]
    assert len(devices.pinned) == (result == 0)
    assert ("cannot be pinned (CUDA error 2)" in caplog.text) == (result == 2)
    assert torch.equal(taken.rest["b"], torch.full((4,), 2.0))
    first = devices.pinned[:]
    snapshot.take({**state, "d": torch.ones(9000)})  # another arena
    assert len(devices.pinned) == len(first)
    snapshot.close()
    assert not devices.pinned


class Own:
    """Of a program; no restricted reader knows it."""


class OfTensor:
    def __init__(self) -> None:
        self.tensor = torch.ones(3)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"a": [1, {"x": torch.zeros(3).to_sparse()}]}, r"state\['a'\]\[1\]\['x'\]: a tensor"),
        ({"a": torch.zeros(2), "b": Own()}, "Own"),
        ({"a": torch.zeros(2), "b": np.zeros(3)}, "numpy"),
        ({"a": torch.zeros(4), "b": [1, {"x": lambda: 1}]}, r"state\['b'\]\[1\]\['x'\]: .*lambda"),
        (
            {"a": torch.zeros(4), "b": [(OfTensor(),)]},
            r"state\['b'\]\[0\]\[0\]: a tensor inside an",
        ),
        ({"a": torch.zeros(4, device="meta")}, r"state\['a'\]"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_its_place(state: dict[str, Any], says: str) -> None:
    snapshot = TorchSnapshot()
    with pytest.raises(SaveError, match=says):
        snapshot.pickled(snapshot.take(state))


def test_two_types_over_the_same_bytes_are_refused_as_torch_does() -> None:
    whole = torch.zeros(4)
    with pytest.raises(SaveError, match="another type"):
        TorchSnapshot().take({"a": whole, "b": whole.view(torch.int32)})


def test_arrays_are_a_safetensors_file_that_safetensors_reads(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy", reason="the judge is safetensors itself")
    state = {
        "w": np.arange(12.0, dtype=np.float32).reshape(3, 4),
        "turned": np.arange(6).reshape(2, 3).T,
        "one": np.float64(2.5),
        "empty": np.zeros((0, 2), np.int16),
        "deep": [np.ones(3, np.bool_), {"step": 4, "name": "x"}],
    }
    snapshot = ArraySnapshot()
    found = snapshot.take(state)
    assert b'"deep/1/step": 4' in snapshot.pickled(found)
    path = tmp_path / "state.safetensors"
    write_image(str(path), Image(found.arena.memory, found.layout.size_bytes), path.name)
    read = numpy.load_file(path)
    assert set(read) == {"w", "turned", "one", "empty", "deep/0"}
    assert np.array_equal(read["turned"], state["turned"])
    assert read["one"] == 2.5


@given(st.lists(st.integers(0, 400), min_size=1, max_size=8))
@settings(max_examples=20, deadline=None)
def test_any_arrays_lie_one_behind_the_other(lengths: list[int]) -> None:
    numpy = pytest.importorskip("safetensors.numpy", reason="the judge is safetensors itself")
    arrays = {f"a{i}": np.full(n, i, np.uint8) for i, n in enumerate(lengths)}
    layout = arrays_layout({name: ("U8", a.shape, a.nbytes) for name, a in arrays.items()})
    content = bytearray(layout.size_bytes)
    content[: len(layout.head)] = layout.head
    for array, offset in zip(arrays.values(), layout.offsets, strict=True):
        content[offset : offset + array.nbytes] = array.tobytes()
    read = numpy.load(bytes(content))
    assert all(np.array_equal(read[name], arrays[name]) for name in arrays)


def test_a_file_of_many_chunks_is_what_was_in_memory(tmp_path: Path) -> None:
    memory = mmap.mmap(-1, 3 * CHUNK_BYTES)
    memory[:] = np.random.default_rng(1).bytes(3 * CHUNK_BYTES)
    for size in (0, 1, 4096, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 5):
        path = tmp_path / str(size)
        noted = write_image(str(path), Image(memory, size), "name")
        assert path.read_bytes() == memory[:size]
        assert noted.size_bytes == size


def test_lost_time_does_not_change_with_what_the_job_does_later() -> None:
    ends = [0.1 * n for n in range(41)]
    ends += [ends[-1] + 0.3, *(ends[-1] + 0.3 + 0.1 * n for n in range(1, 10))]
    now = lost_s(ends, 4.0, 4.25)
    assert now == pytest.approx(0.2)
    later = [ends[-1] + 0.2 * n for n in range(1, 61)]
    assert lost_s(ends + later, 4.0, 4.25) == now
    assert lost_s(ends[38:], 4.0, 4.25) == pytest.approx(0.2)  # few before it: those after count


def test_the_mode_is_that_of_the_lower_cost_and_the_other_is_tried_again() -> None:
    cheaper = Cheaper("auto")

    def after(n: int, cost_s: float) -> bool:
        for _ in range(n):
            cheaper.learn(cheaper.is_blocking, cost_s, 0.2)
        return cheaper.is_blocking

    assert not after(2, 0.3)  # two tell nothing
    assert after(1, 0.3)
    assert after(RETRIED_AFTER - 1, 0.2)
    assert not after(1, 0.2)  # anew
    assert after(3, 0.25)
    assert not after(3, 0.35)  # writing has become dearer than what it kept from the steps
    assert not after(100, 0.09)  # far below what a blocking one takes: none is tried


def test_a_mode_that_was_asked_for_stays() -> None:
    for mode, is_blocking in (("background", False), ("blocking", True)):
        cheaper = Cheaper(mode)
        for cost_s in (9.0, 0.0) * 4:
            assert cheaper.learn(is_blocking, cost_s, 0.1) == ""
            assert cheaper.is_blocking is is_blocking


def test_lost_time_is_what_touched_steps_took_beyond_quiet_ones() -> None:
    # Ten steps of 1 s, one of 3 s that holds the save, one of 1.5 s beside the drain, one of 1 s.
    ends = [float(n) for n in range(11)] + [13.0, 14.5, 15.5]
    assert lost_s(ends, 10.5, 14.0) == pytest.approx(2.5)
    assert lost_s(ends, 14.6, 20.0) is None  # no step has ended since
    assert lost_s(ends[9:], 10.5, 14.0) is None  # too few quiet ones
    assert lost_s(ends, 10.5, 12.0, [(0.0, 20.0)]) is None  # beside another save none is quiet


def test_steps_that_are_uneven_by_themselves_cost_no_save_anything() -> None:
    uneven = [0.1, 0.1, 0.1, 0.1, 0.15] * 20
    ends = [0.0, *accumulate(uneven)]
    assert lost_s(ends, ends[50], ends[90]) == pytest.approx(0.0, abs=1e-9)
    uneven[20] = 30.0  # an evaluation is no step
    ends = [0.0, *accumulate(uneven)]
    assert lost_s(ends, ends[50], ends[90]) == pytest.approx(0.0, abs=0.1)


def test_the_end_of_an_epoch_is_no_cost_of_the_save_in_it() -> None:
    steps = [0.1] * 20 + [2.05] + [0.12] * 5 + [0.1] * 20  # a save of 0.5 s, and an evaluation
    ends = [0.0, *accumulate(steps)]
    begin_s = ends[20] + 0.1
    known = {"block_s": 0.05, "local_s": 0.5}
    assert lost_s(ends, begin_s, begin_s + 0.5, **known) == pytest.approx(0.05)
    assert lost_s(ends, begin_s, ends[26], **known) == pytest.approx(0.15)  # with the drain
    steps[20] = 0.65  # the save alone, which starved it
    ends = [0.0, *accumulate(steps)]
    assert lost_s(ends, ends[20], ends[20] + 0.5, **known) == pytest.approx(0.55)


def test_the_size_of_views_of_one_buffer_is_that_of_what_is_saved() -> None:
    whole = np.arange(10.0)
    views = {n: torch.from_numpy(whole[:n]) for n in (4, 10)}
    assert size_of({"views": views, "again": views[10]}) == 14 * 8
