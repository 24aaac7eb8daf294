"""Files of each format, written by the format's own library, then cut, grown and killed at any
place.  A file that the library refuses for its length is never judged whole; a sound file is never
judged damaged."""

import contextlib
import json
import os
import pickle
import pickletools
import random
import signal
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fixtures import THOROUGH
from penstock.cli.save import _verdict_line, save
from penstock.places.stores import LocalStore
from penstock.save.burst.file import is_torn
from penstock.save.check.foreign import Damage, Scope
from penstock.save.check.judges import arrays, check_file, pickled
from penstock.save.check.judges.hdf5 import lookup3
from penstock.save.checkpoint import Checkpoint
from penstock.save.find.formats import find
from penstock.save.verify import (
    BY_LENGTH,
    BY_NAME,
    NOT_WHOLE,
    UNCHECKED,
    WHOLE,
    CheckpointVerdict,
    latest_valid,
    verify,
)

CUTS, LOOKS = 50, 25


def judged(path: Path, level: str = "sizes") -> CheckpointVerdict:
    """Return the verdict on the file as part of a checkpoint folder."""
    store = LocalStore(path.parent)
    found = store.stat(path.name)
    assert found is not None
    return verify(Checkpoint(store, path.name, "files", False, (found,), None), level)


def state_of(path: Path, level: str = "sizes") -> str:
    return judged(path, level).state


def cuts(size_bytes: int, chance: random.Random, edges: tuple[int, ...] = ()) -> list[int]:
    """Return lengths to which a file of this size is cut: at the edges and at random."""
    near = {one + shift for one in (0, size_bytes, *edges) for shift in (-1, 0, 1)}
    anywhere = {chance.randrange(size_bytes) for _ in range(CUTS)}
    return sorted(one for one in near | anywhere if 0 <= one < size_bytes)


def is_seen_wherever_it_is_cut(path: Path, chance: random.Random, *edges: int) -> None:
    data = path.read_bytes()
    for cut in cuts(len(data), chance, edges):
        path.write_bytes(data[:cut])
        assert state_of(path) == NOT_WHOLE, cut
    path.write_bytes(data)


def grown(path: Path) -> str:
    data = path.read_bytes()
    path.write_bytes(data + b"garbage")
    try:
        return state_of(path, "full")
    finally:
        path.write_bytes(data)


# --- HDF5 -----------------------------------------------------------------------------------------

h5py = pytest.importorskip("h5py")
np = pytest.importorskip("numpy")

VERSIONS = [None, "earliest", "latest", ("v108", "v110"), ("v110", "v114"), ("earliest", "v108")]


def hdf5(path: Path, chance: random.Random) -> dict[str, Any]:
    """Write a file with options, groups, datasets and attributes drawn at random."""
    options: dict[str, Any] = {
        "libver": chance.choice(VERSIONS),
        "userblock_size": chance.choice([0, 0, 512, 4096]),
        "driver": chance.choice([None, None, None, "core", "stdio"]),
    }
    if chance.random() < 0.3 and not options["userblock_size"] and options["libver"] is None:
        options["fs_strategy"] = chance.choice(["page", "fsm", "aggregate", "none"])
        options["fs_persist"] = chance.random() < 0.5
    options["track_order"] = chance.random() < 0.2
    with h5py.File(path, "w", **options) as file:
        for number in range(chance.choice([0, 1, 3, 12, 40])):
            within = "/".join(chance.choice("abc") for _ in range(chance.randrange(4)))
            dataset(file, f"{within}/d{number}", chance)
            if chance.random() < 0.1:
                file[f"soft{number}"] = h5py.SoftLink("/nowhere")
                file[f"outer{number}"] = h5py.ExternalLink("other.h5", "/x")
        if chance.random() < 0.2 and len(file):
            del file[next(iter(file))]
    return options


def dataset(file: Any, name: str, chance: random.Random) -> None:
    shape = tuple(chance.randrange(30) for _ in range(chance.randrange(4)))
    kind = chance.choice(["f4", "f8", "i1", "f2", "S5", h5py.string_dtype()])
    options: dict[str, Any] = {}
    if all(shape) and shape and isinstance(kind, str) and chance.random() < 0.5:
        options["chunks"] = tuple(max(1, extent // chance.choice([1, 3])) for extent in shape)
        options["compression"] = chance.choice([None, "gzip", "lzf"])
        options["maxshape"] = tuple(chance.choice([None, extent]) for extent in shape)
        options["fletcher32"] = chance.random() < 0.3
    made = file.create_dataset(name, shape, dtype=kind, **options)
    if isinstance(kind, str) and kind != "S5" and chance.random() < 0.8:
        made[...] = chance.random()
    for number in range(chance.choice([0, 0, 2, 20])):
        made.attrs[f"a{number}"] = chance.choice(["text", 5, np.ones(30), ["a", "b"]])


@pytest.mark.parametrize("seed", range(4))
def test_a_sound_hdf5_file_of_any_kind_is_complete_and_cut_anywhere_it_is_not(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    path = tmp_path / "a.h5"
    for _ in range(LOOKS):
        options = hdf5(path, chance)
        verdict = judged(path, "full")
        assert (verdict.state, verdict.problems) == (BY_LENGTH, ()), options
        data = path.read_bytes()
        for cut in cuts(len(data), chance)[::6]:
            path.write_bytes(data[:cut])
            assert state_of(path) == NOT_WHOLE, (options, cut)
        path.write_bytes(data)
        assert grown(path) == NOT_WHOLE


def opens(path: Path) -> bool:
    """Return whether h5py reads the whole file, in a separate process: the library may hang on
    damage."""
    child = os.fork()
    if not child:
        signal.alarm(5)
        try:
            with h5py.File(path) as file:
                names: list[str] = []
                file.visit(names.append)
                for name in names:
                    if isinstance(file[name], h5py.Dataset):
                        file[name][()]
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("version", [None, "latest"])
def test_an_hdf5_file_whose_writer_is_killed_anywhere_is_not_whole(
    tmp_path: Path, version: str | None
) -> None:
    def written(path: Path, ends_at: int) -> None:
        file = h5py.File(path, "w", libver=version)
        for number in range(30):
            if number == ends_at:
                os._exit(0)  # like SIGKILL: nothing is flushed
            file.create_dataset(f"layers/{number % 7}/{number}", data=np.full((40, 40), 1.0, "f4"))
            if number % 8 == 7:
                file.flush()

    path = tmp_path / "a.weights.h5"
    for ends_at in range(30):
        path.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            written(path, ends_at)
        os.waitpid(child, 0)
        state = state_of(path, "full")
        # Right after a flush the file is complete, even if the writer is killed; the newer format
        # marks the file as open.
        is_flushed = ends_at % 8 == 0 and ends_at > 0 and version is None
        assert state == (BY_LENGTH if is_flushed else NOT_WHOLE), ends_at
        assert opens(path) or state == NOT_WHOLE


def test_an_hdf5_file_that_is_open_for_writing_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["a"] = np.ones(10)
        file.flush()
        assert "marked as open for writing" in judged(path).problems[0]
        file.swmr_mode = True
        assert "marked as open for writing" in judged(path).problems[0]
    assert state_of(path) == BY_LENGTH


def test_zeros_in_the_metadata_of_an_hdf5_file_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    for version in (None, "latest"):
        with h5py.File(path, "w", libver=version) as file:
            for number in range(6):
                file[f"layers/dense_{number}/vars/0"] = np.ones((8, 8), "f4")
        data = path.read_bytes()
        n_refused = n_found = 0
        for start in range(0, len(data) - 128, 128 if THOROUGH else 384):
            path.write_bytes(data[:start] + bytes(128) + data[start + 128 :])
            is_refused = not opens(path)
            n_refused += is_refused
            n_found += is_refused and state_of(path) == NOT_WHOLE
            assert not (state_of(path) == NOT_WHOLE and opens(path)), start
        assert n_found >= 0.8 * n_refused > 5, version


@pytest.mark.parametrize("signature", [b"SNOD", b"TREE"])
def test_a_node_of_an_hdf5_group_with_zeros_behind_its_name_is_found(
    tmp_path: Path, signature: bytes
) -> None:
    """As a lost block leaves it: the library refuses such a file, or finds only a part of it."""
    path = tmp_path / "a.weights.h5"
    with h5py.File(path, "w") as file:
        for number in range(3):
            file[f"layers/d{number}/vars/0"] = np.ones(9)
    data = path.read_bytes()
    places = [n for n in range(len(data)) if data.startswith(signature, n)]
    assert places
    for place in places:
        for n_kept in (4, 6):
            begin = place + n_kept
            spoilt = data[:begin] + bytes(24 - n_kept) + data[place + 24 :]
            path.write_bytes(spoilt)
            assert state_of(path, "full") == "NOT WHOLE", (place, n_kept)


def test_hdf5_data_in_several_files_is_not_judged_by_one_of_them(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "part%d.h5", "w", driver="family", memb_size=4096) as file:
        file["a"] = np.ones(3000)
    assert state_of(tmp_path / "part0.h5") == UNCHECKED
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = np.ones(10)
    with (tmp_path / "a.h5").open("r+b") as opened:
        opened.seek(48)
        opened.write(bytes(8))  # claims another driver that is not present
    assert "driver information" in judged(tmp_path / "a.h5").problems[0]


def test_any_changed_bit_of_a_superblock_with_a_checksum_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["a"] = np.ones(10)
    data = path.read_bytes()
    for place in range(48):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        # The version decides whether there is a checksum; a changed version may be a newer
        # library's.
        assert state_of(path) == NOT_WHOLE or (place == 8 and state_of(path) == UNCHECKED), place


def test_the_checksum_of_hdf5_is_that_of_its_inventor() -> None:
    assert lookup3(b"") == 0xDEADBEEF  # lookup3.c, driver5()
    assert lookup3(b"Four score and seven years ago") == 0x17770551


def test_a_keras_weights_file_killed_in_writing_is_passed_over(tmp_path: Path) -> None:
    def saved(path: Path, is_killed: bool) -> None:
        with h5py.File(path, "w") as file:
            for number in range(6):
                file.create_dataset(f"l/{number}/vars/0", data=np.full((256, 256), 1, "f4"))
                if is_killed and number == 3:
                    os._exit(0)

    saved(tmp_path / "step-1.weights.h5", is_killed=False)
    child = os.fork()
    if not child:
        saved(tmp_path / "step-2.weights.h5", is_killed=True)
    os.waitpid(child, 0)
    choice = latest_valid(tmp_path, level="full")
    assert (choice.step, choice.state) == (1, BY_LENGTH)
    assert "its superblock ends at" in choice.rejected[0][1]


def sparse(path: Path, n_items: int) -> None:
    """Write a file of one array of n_items float32 values, of which only the last is written."""
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("a", (n_items,), "f4")[-1] = 1.0
        return
    if path.suffix == ".npy":
        head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,)}" % n_items
        head = b"\x93NUMPY\2\0" + struct.pack("<I", len(head)) + head
    elif path.suffix == ".gguf":
        head = b"GGUF" + struct.pack("<I2Q", 3, 1, 0) + struct.pack("<Q", 1) + b"w"
        head += struct.pack("<IQIQ", 1, n_items, 0, 0)
        head += bytes(-len(head) % 32)
    elif path.suffix == ".msgpack":  # as Flax writes large arrays: in pieces of less than 4 GiB
        head, piece = (
            b"\xdd" + struct.pack(">I", n_items >> 28),
            b"\xc6" + struct.pack(">I", 1 << 30),
        )
        with path.open("wb") as file:
            file.write(head)
            for _ in range(n_items >> 28):
                file.write(piece)
                file.seek((1 << 30) - 1, os.SEEK_CUR)
                file.write(b"\1")
        return
    else:
        head = b'{"a":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}' % (n_items, 4 * n_items)
        head = struct.pack("<Q", len(head)) + head
    with path.open("wb") as file:
        file.write(head)
        file.seek(len(head) + 4 * n_items - 1)
        file.write(b"\1")


@pytest.mark.parametrize("ending", ["h5", "npy", "gguf", "msgpack", "safetensors"])
def test_a_sparse_file_of_100_gb_is_judged_without_its_data(tmp_path: Path, ending: str) -> None:
    """Measure the bytes read, which other programs cannot change."""
    path = tmp_path / f"a.{ending}"
    sparse(path, 25 << 30)
    assert path.stat().st_size >= 100 << 30
    with path.open("rb", buffering=0) as opened:
        counted = Counted(opened)
        check_file(counted, path.name, path.stat().st_size, Scope("sizes"))  # type: ignore[arg-type]
    assert counted.n_bytes < (64 << 20 if ending == "msgpack" else 1 << 20)
    assert state_of(path) == BY_LENGTH
    os.truncate(path, path.stat().st_size - 1)
    assert state_of(path) == NOT_WHOLE


class Counted:
    """A file object that counts the bytes read."""

    def __init__(self, file: Any) -> None:
        self._file, self.n_bytes = file, 0

    def seek(self, *place: int) -> int:
        return int(self._file.seek(*place))

    def tell(self) -> int:
        return int(self._file.tell())

    def read(self, n_bytes: int = -1) -> bytes:
        data: bytes = self._file.read(n_bytes)
        self.n_bytes += len(data)
        return data


# --- torch before 1.6, pickles --------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def torch_state(torch: Any, chance: random.Random) -> dict[str, Any]:
    kinds = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32]
    kinds += [torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128]
    base = torch.arange(100.0)
    state: dict[str, Any] = {"views": [base[3:7], base.view(10, 10).t(), torch.nn.Parameter(base)]}
    for number in range(chance.choice([0, 1, 30])):
        shape = [chance.randrange(9) for _ in range(chance.randrange(4))]
        state[f"w{number}"] = torch.zeros(shape, dtype=chance.choice(kinds))
    state["raw"], state["sparse"] = torch.UntypedStorage(17), torch.eye(4).to_sparse()
    state["layer"] = torch.nn.Linear(3, 4)
    state["optimizer"] = torch.optim.Adam(state["layer"].parameters()).state_dict()
    state |= {"big": 2**200, "floats": [1.5] * 50, "set": {1, 2}, "rng": random.getstate()}
    return state


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_an_old_torch_file_is_followed_to_its_end_and_cut_anywhere_it_is_not_whole(
    torch: Any, tmp_path: Path, protocol: int
) -> None:
    chance = random.Random(protocol)
    path = tmp_path / "a.pt"
    for _ in range(6):
        state = torch_state(torch, chance)
        torch.save(state, path, pickle_protocol=protocol, _use_new_zipfile_serialization=False)
        verdict = judged(path, "full")
        assert (verdict.state, verdict.problems) == (BY_LENGTH, ())
        assert "before torch 1.6" in verdict.remarks[0]
        is_seen_wherever_it_is_cut(path, chance)
        assert grown(path) == NOT_WHOLE
        with path.open("ab") as file:  # consecutive, as torch.load reads pickles
            torch.save(state, file, _use_new_zipfile_serialization=False)
        assert state_of(path) == BY_LENGTH


def test_a_storage_of_an_old_torch_file_of_another_length_is_found(
    torch: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.ones(1000)}, path, _use_new_zipfile_serialization=False)
    data = bytearray(path.read_bytes())
    place = len(data) - 4008
    assert struct.unpack_from("<q", data, place) == (1000,)
    for length in (999, 1001, -1, 1 << 62):
        struct.pack_into("<q", data, place, length)
        path.write_bytes(data)
        assert "its pickle says 1,000" in judged(path).problems[0]


def test_half_of_an_old_torch_file_is_never_preferred(torch: Any, tmp_path: Path) -> None:
    torch.save({"a": torch.ones(100, 100)}, tmp_path / "step-1.pt")
    path = tmp_path / "step-3.pt"
    torch.save({"a": torch.ones(200, 200)}, path, _use_new_zipfile_serialization=False)
    os.truncate(path, path.stat().st_size // 2)
    choice = latest_valid(tmp_path)
    assert (choice.step, choice.state) == (1, WHOLE)


def test_a_cut_file_is_torn_for_the_burst_buffer(torch: Any, tmp_path: Path) -> None:
    torch.save({"a": torch.ones(99)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        file["a"] = np.ones(99)
    np.save(tmp_path / "a.npy", np.ones(99))
    for path in (tmp_path / "a.pt", tmp_path / "a.weights.h5", tmp_path / "a.npy"):
        assert not is_torn(path, path.name)
        os.truncate(path, path.stat().st_size - 1)
        assert is_torn(path, path.name)
    (tmp_path / "a.weights.h5").write_bytes(bytes(96) + b"data")  # killed before the first flush
    assert is_torn(tmp_path / "a.weights.h5", "a.weights.h5")


def test_every_operation_of_a_pickle_has_the_length_that_python_gives_it() -> None:
    for one in pickletools.opcodes:
        code = ord(one.code)
        n = one.arg.n if one.arg is not None else 0
        if code == ord("\x95"):
            continue  # a frame: eight bytes, then the content is checked
        if n >= 0:
            assert pickled._FIXED[code] == n, one.name
        elif n == pickletools.UP_TO_NEWLINE:
            assert pickled._LINES[code] == (2 if one.name in ("GLOBAL", "INST") else 1), one.name
        else:
            widths = {
                pickletools.TAKEN_FROM_ARGUMENT1: 1,
                pickletools.TAKEN_FROM_ARGUMENT4: 4,
                pickletools.TAKEN_FROM_ARGUMENT4U: 4,
                pickletools.TAKEN_FROM_ARGUMENT8U: 8,
            }
            assert pickled._COUNTED[code] == widths[n], one.name
    n_known = len(pickled._FIXED) + len(pickled._LINES) + len(pickled._COUNTED) + 1
    assert n_known == len(pickletools.opcodes)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_ends_where_its_file_does(tmp_path: Path, protocol: int) -> None:
    chance = random.Random(protocol)
    path = tmp_path / "a.pkl"
    value = {
        "list": list(range(30_000)), "bytes": os.urandom(200_000), "array": bytearray(90_000),
        "text": "x" * 100_000, "floats": [1.5] * 500, "error": ValueError("x"), "long": 2**5000,
        "numpy": np.arange(5000.0), "objects": np.array([1, "a", None], dtype=object),
    }  # fmt: skip
    path.write_bytes(pickle.dumps(value, protocol))
    assert state_of(path, "full") == state_of(path) == BY_LENGTH
    is_seen_wherever_it_is_cut(path, chance)
    assert grown(path) == NOT_WHOLE
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"N.")  # whole by its operations, of a protocol that no writer uses today
    assert "more follows" in judged(path).problems[0]
    os.truncate(path, path.stat().st_size - 2)
    with path.open("ab") as file:  # several pickles in a file
        pickle.dump(value, file, protocol)
    assert state_of(path) == BY_LENGTH
    path.write_bytes(bytes(1000))
    assert "never written" in judged(path).problems[0]


def test_what_is_in_a_pickle_is_not_carried_out(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {tmp_path / 'executed'}",)

    for name in ("a.pkl", "a.pt"):
        (tmp_path / name).write_bytes(pickle.dumps(Evil()))
        assert state_of(tmp_path / name, "full") == BY_LENGTH
    assert not (tmp_path / "executed").exists()


# --- NumPy ----------------------------------------------------------------------------------------

NUMPY = [
    "f4", ">f8", "i1", "?", "u2", "c16", "S7", "U5", "M8[ns]", "m8[s]", "V10", "f2",
    [("a", "f4"), ("b", "i8", (3, 2)), ("c", [("d", "u1"), ("e", "U2")])],
    np.dtype({"names": ["a"], "formats": ["f4"], "offsets": [4], "itemsize": 16}),
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
]  # fmt: skip


@pytest.mark.parametrize("kind", NUMPY, ids=str)
def test_a_numpy_file_has_the_length_of_its_shape(tmp_path: Path, kind: Any) -> None:
    chance = random.Random(str(kind))
    path = tmp_path / "a.npy"
    for _ in range(4):
        shape = tuple(chance.randrange(6) for _ in range(chance.randrange(4)))
        array = np.zeros(shape, kind, order=chance.choice("CF"))
        for version in ((1, 0), (2, 0), (3, 0), None):
            with path.open("wb") as file:
                np.lib.format.write_array(file, array, version)
            assert state_of(path, "full") == BY_LENGTH, (shape, version)
            is_seen_wherever_it_is_cut(path, chance)
            assert grown(path) == NOT_WHOLE
    with path.open("ab") as file:  # consecutive arrays
        np.save(file, array)
    assert state_of(path) == BY_LENGTH


def test_a_numpy_file_of_objects_ends_where_its_pickle_does(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for kind in (object, [("a", "O"), ("b", "f4")]):
        np.save(path, np.zeros(30, kind), allow_pickle=True)
        assert state_of(path) == BY_LENGTH
        is_seen_wherever_it_is_cut(path, random.Random(1))
        assert grown(path) == NOT_WHOLE


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_of_numpy_s_is_judged_by_its_directory_and_its_crc(
    tmp_path: Path, save: Callable[..., None]
) -> None:
    path = tmp_path / "a.npz"
    save(path)
    assert state_of(path, "full") == BY_LENGTH  # the format has no checksum
    save(path, a=np.arange(1000.0), b=np.random.default_rng(1).random(500), c=np.zeros(0))
    assert (state_of(path, "full"), state_of(path)) == (WHOLE, BY_LENGTH)
    chance = random.Random(2)
    is_seen_wherever_it_is_cut(path, chance)
    data = bytearray(path.read_bytes())
    for start in (0, 200, len(data) - 40):
        path.write_bytes(data[:start] + bytes(32) + data[start + 32 :])
        assert state_of(path, "full") == NOT_WHOLE, start


def test_a_record_that_a_directory_says_is_longer_than_it_can_be_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(1000.0))
    data = bytearray(path.read_bytes())
    entry = data.rfind(b"PK\1\2")
    struct.pack_into("<2I", data, entry + 20, 9000, 9000)
    path.write_bytes(data)
    assert "reaches into the directory" in judged(path, "sizes").problems[0]


# --- GGUF -----------------------------------------------------------------------------------------


def gguf_file(path: Path, chance: random.Random) -> None:
    """Write a file with gguf-py: values of every type, several tensor types, and an alignment."""
    import gguf
    from gguf.constants import GGML_QUANT_SIZES

    is_big = chance.random() < 0.3
    writer = gguf.GGUFWriter(
        path, "llama", endianess=gguf.GGUFEndian.BIG if is_big else gguf.GGUFEndian.LITTLE
    )
    if chance.random() < 0.5:
        writer.add_custom_alignment(chance.choice([8, 64, 256]))
    writer.add_array("tokenizer.ggml.tokens", [f"token {n}" for n in range(chance.randrange(300))])
    writer.add_array("scores", [0.5] * chance.randrange(1, 50))
    writer.add_uint8("a", 1)
    writer.add_int64("b", -5)
    writer.add_bool("c", True)
    writer.add_string("d", "text" * chance.randrange(30))
    kinds = [one for one in GGML_QUANT_SIZES if int(one) in arrays._BLOCKS]
    for number in range(chance.choice([0, 1, 20])):
        kind = chance.choice(kinds)
        in_block, block_bytes = GGML_QUANT_SIZES[kind]
        rows, blocks = chance.randrange(1, 5), chance.randrange(1, 4)
        data = np.zeros((rows, blocks * block_bytes), np.uint8)
        writer.add_tensor(f"w{number}", data, raw_dtype=kind)
        assert in_block * blocks
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_gguf_file_is_as_long_as_its_tensors(tmp_path: Path, seed: int) -> None:
    pytest.importorskip("gguf")
    chance = random.Random(seed)
    path = tmp_path / "a.gguf"
    for _ in range(8):
        gguf_file(path, chance)
        verdict = judged(path, "full")
        assert (verdict.state, verdict.problems) == (BY_LENGTH, ())
        data = path.read_bytes()
        n_padding = len(data) - len(data.rstrip(b"\0")) if data.endswith(b"\0") else 0
        for cut in cuts(len(data), chance)[::3]:
            path.write_bytes(data[:cut])
            # Loaders do not need the padding after the last tensor.
            assert state_of(path) == NOT_WHOLE or cut > len(data) - n_padding, cut
        path.write_bytes(data + bytes(300))
        assert state_of(path) == NOT_WHOLE


def test_the_blocks_of_gguf_are_those_of_its_library() -> None:
    constants = pytest.importorskip("gguf.constants")
    theirs = {int(kind): sizes for kind, sizes in constants.GGML_QUANT_SIZES.items()}
    # ggml and gguf-py disagree on the size of type 9; no file uses type 9.
    assert 9 not in arrays._BLOCKS
    known = {kind: sizes for kind, sizes in theirs.items() if kind in arrays._BLOCKS}
    assert len(known) >= 30
    assert {kind: arrays._BLOCKS[kind] for kind in known} == known


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_of_gguf_is_followed(tmp_path: Path, version: int) -> None:
    width = "I" if version == 1 else "Q"
    name, key = b"w", b"general.alignment"
    head = b"GGUF" + struct.pack(f"<I2{width}", version, 1, 1)
    head += struct.pack(f"<{width}", len(key)) + key + struct.pack("<2I", 4, 64)
    head += struct.pack(f"<{width}", 1) + name + struct.pack(f"<I2{width}", 2, 64, 3)
    head += struct.pack("<IQ", 2, 0)  # Q4_0: 6 blocks of 18 bytes
    path = tmp_path / "a.gguf"
    start = -(-len(head) // 64) * 64
    whole = head + bytes(start - len(head)) + b"\1" * 108
    for data, state in (
        (whole, BY_LENGTH),
        (whole + bytes(64 - 108 % 64), BY_LENGTH),
        (whole[:-1], NOT_WHOLE),
        (whole + bytes(100), NOT_WHOLE),
        (head, NOT_WHOLE),
    ):
        path.write_bytes(data)
        assert state_of(path) == state, len(data)


# --- msgpack --------------------------------------------------------------------------------------


def test_a_msgpack_file_is_one_object_to_its_end(tmp_path: Path) -> None:
    msgpack = pytest.importorskip("msgpack")
    chance = random.Random(5)
    path = tmp_path / "flax_model.msgpack"

    def drawn(depth: int) -> Any:
        kind = chance.randrange(9 if depth < 4 else 7)
        if kind == 7:
            return {f"k{n}": drawn(depth + 1) for n in range(chance.choice([0, 3, 20]))}
        if kind == 8:
            return [drawn(depth + 1) for _ in range(chance.choice([0, 3, 20]))]
        n = chance.choice([0, 1, 5, 16, 40, 300, 70_000])
        return (
            None, True, chance.randrange(-(2**63), 2**64), 1.5, "x" * n, b"y" * n,
            msgpack.ExtType(1, b"z" * n),
        )[kind]  # fmt: skip

    for _ in range(60):
        path.write_bytes(
            msgpack.packb({"params": drawn(0)}, use_single_float=chance.random() < 0.5)
        )
        assert state_of(path, "full") == BY_LENGTH
        data = path.read_bytes()
        for cut in cuts(len(data), chance)[::8]:
            path.write_bytes(data[:cut])
            assert state_of(path) == NOT_WHOLE, cut
        path.write_bytes(data)
        assert grown(path) == NOT_WHOLE
    path.write_bytes(bytes(1000))
    assert state_of(path) == NOT_WHOLE
    path.write_bytes(b"\xdd\xff\xff\xff\xff" + bytes(1000))  # claims four billion elements
    assert "cut short" in judged(path).problems[0]


# --- safetensors ----------------------------------------------------------------------------------


def test_a_safetensors_file_is_as_long_as_its_header_says(torch: Any, tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    chance = random.Random(6)
    path = tmp_path / "a.safetensors"
    for _ in range(10):
        kinds = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn]
        state = {
            f"w{n}": torch.zeros([chance.randrange(9) for _ in range(chance.randrange(4))]).to(
                chance.choice(kinds)
            )
            for n in range(chance.choice([1, 20]))
        }
        save_file(state, path, chance.choice([None, {"format": "pt"}]))
        assert state_of(path, "full") == BY_LENGTH
        is_seen_wherever_it_is_cut(path, chance)
        assert grown(path) == NOT_WHOLE


# --- files that cannot be checked -----------------------------------------------------------------


def test_a_checked_checkpoint_is_preferred_to_a_newer_one_in_which_nothing_can_be_checked(
    tmp_path: Path,
) -> None:
    def models(*steps: int) -> Iterator[Path]:
        for step in steps:
            folder = tmp_path / f"step-{step}"
            folder.mkdir()
            (folder / "config.json").write_text("{}")
            (folder / "model.bin").write_bytes(b"spec" * 100)
            yield folder

    newest, _ = reversed(list(models(1, 2)))
    choice = latest_valid(tmp_path)
    assert (choice.path, choice.state) == (newest, UNCHECKED)
    with zipfile.ZipFile(tmp_path / "step-1" / "model.bin", "w") as archive:
        archive.writestr("m/data.pkl", b"x" * 100)
    choice = latest_valid(tmp_path)
    assert (choice.step, choice.state) == (1, WHOLE)
    assert choice.rejected == ((str(newest), "unchecked, and another one is checked"),)
    assert latest_valid(tmp_path, level="sizes").state == BY_LENGTH


def test_a_sound_file_with_anything_changed_in_it_ends_in_a_verdict(
    torch: Any, tmp_path: Path
) -> None:
    pytest.importorskip("gguf")
    chance = random.Random(7)
    made = [
        tmp_path / f"a.{ending}" for ending in ("h5", "gguf", "npy", "npz", "pkl", "pt", "ckpt")
    ]
    hdf5(made[0], chance)
    gguf_file(made[1], chance)
    np.save(made[2], np.zeros(9, [("a", "f4"), ("b", "i8", (3,))]))
    np.savez(made[3], a=np.ones(3))
    made[4].write_bytes(pickle.dumps({"a": [1, b"x" * 99], "b": ValueError(1)}))
    torch.save({"a": torch.ones(9)}, made[5], _use_new_zipfile_serialization=False)
    torch.save({"a": torch.ones(9)}, made[6])
    for path in made:
        data = path.read_bytes()
        for _ in range(300):
            changed = bytearray(data)
            for _ in range(chance.choice([1, 1, 4])):
                place, n = chance.randrange(len(changed)), chance.randrange(1, 9)
                anything = chance.choice([b"\xff" * 8, bytes(8), chance.randbytes(8)])[:n]
                changed[place : place + chance.choice([0, n])] = anything
            path.write_bytes(changed)
            with path.open("rb") as file, contextlib.suppress(Damage):
                check_file(file, path.name, len(changed), Scope("full"))


def test_a_small_file_of_an_unknown_kind_does_not_hide_what_is_checked(tmp_path: Path) -> None:
    folder = tmp_path / "step-1"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for name in ("LICENSE", "latest", "merges.bpe"):
        (folder / name).write_text("step-1\n")
    header = b'{"a":{"dtype":"F32","shape":[99],"data_offsets":[0,396]}}'
    weights = len(header).to_bytes(8, "little") + header + bytes(395) + b"\1"
    (folder / "model.safetensors").write_bytes(weights)
    (one,) = find(LocalStore(tmp_path))
    assert verify(one).state == BY_LENGTH
    (folder / "vocab.bin").write_bytes(b"\x80\xff" * 9)
    (one,) = find(LocalStore(tmp_path))
    verdict = verify(one, "full")
    assert (verdict.state, verdict.unchecked) == (BY_NAME, ("vocab.bin",))
    assert _verdict_line(verdict, "").startswith(
        "step-1: complete by name (hf, full), nothing can be checked in vocab.bin, "
    )
    (line,) = CliRunner().invoke(save, ["verify", str(tmp_path)]).output.splitlines()
    assert line.startswith("step-1: complete by name (hf, sample)")
    asked = CliRunner().invoke(save, ["verify", str(tmp_path), "--json"])
    (row,) = json.loads(asked.output)
    assert (row["state"], row["is_whole"]) == ("complete by name", True)
    assert verdict.is_checked
    assert latest_valid(tmp_path).state == BY_NAME


def test_a_file_as_a_writer_at_work_leaves_it_is_not_taken_for_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(99))
    data = path.read_bytes()
    for cut, is_unended in ((data[:-1], True), (data[:20], True), (data + b"x", False)):
        path.write_bytes(cut)
        verdict = judged(path)
        assert (verdict.state, verdict.is_unended) == (NOT_WHOLE, is_unended)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.ones(10)
    data = path.read_bytes()
    for cut, is_unended in (
        (data[:-1], True), (data + b"x", True), (data[:96] + bytes(40) + data[136:], False),
    ):  # fmt: skip
        path.write_bytes(cut)
        assert judged(path).is_unended == is_unended


def test_a_file_that_makes_no_checkpoint_is_judged_where_it_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(99))
    (tmp_path / "notes").write_text("a text")
    asked = CliRunner().invoke(save, ["verify", str(tmp_path / "a.npy")])
    assert asked.output.splitlines()[0].startswith("a.npy: complete by length (files, sample)")
    os.truncate(tmp_path / "a.npy", 500)
    asked = CliRunner().invoke(save, ["verify", str(tmp_path / "a.npy")])
    assert "a.npy: NOT WHOLE: a.npy: 500 bytes" in asked.output
    assert "no checkpoint found" in CliRunner().invoke(
        save, ["verify", str(tmp_path / "notes")]
    ).output  # fmt: skip


def test_any_bytes_in_a_file_of_any_name_end_in_a_verdict(tmp_path: Path) -> None:
    chance = random.Random(3)
    starts = [b"", b"\x89HDF\r\n\x1a\n", b"\x80\x02", b"\x80\x04\x95", pickled.TORCH_MAGIC]
    starts += [b"GGUF\3\0\0\0", b"\x93NUMPY\1\0\x20\0", b"PK\5\6", b"PK\3\4"]
    endings = ("h5", "pt", "pkl", "keras", "bin", "safetensors", "npy", "npz", "gguf", "msgpack")
    for name in (f"a.{ending}" for ending in endings):
        for start in starts:
            for _ in range(20):
                data = start + chance.randbytes(chance.randrange(1, 200))
                (tmp_path / name).write_bytes(data)
                assert state_of(tmp_path / name, "full") in (NOT_WHOLE, BY_LENGTH, UNCHECKED)


def test_find_and_judge_agree_about_a_cut_file(tmp_path: Path) -> None:
    (tmp_path / "a.weights.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    (one,) = find(LocalStore(tmp_path))
    assert one.kind == "hdf5"
    assert verify(one).state == NOT_WHOLE
    with pytest.raises(Damage), (tmp_path / "a.weights.h5").open("rb") as file:
        check_file(file, "a", 8, Scope("full"))
