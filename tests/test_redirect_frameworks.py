"""What loaders of training data read when a copy is staged, and that their workers do too.

Each file is made twice, of one size: filled with zeros, which is the source, and with ones, which
is put in the place of the copy.  A loader that yields ones has read the copy.
"""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagedmap import Tier
from test_frameworks_torch import needs

Made = Callable[[str], Tier]


@pytest.fixture
def made(work: Path, tmp_path: Path) -> Made:
    """Runs source that makes files of `value` in the working folder; a tier with marked copies."""

    def make(source: str) -> Tier:
        marked = tmp_path / "marked"
        marked.mkdir()
        for folder, value in ((work, 0), (marked, 1)):
            program = f"value = {value}\n" + textwrap.dedent(source)
            subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, timeout=240)
        sources = sorted(path for path in work.rglob("*") if path.is_file())
        tier = Tier(tmp_path / "tier", sources)
        for path in sources:
            copy, other = tier.copy_of(path), marked / path.relative_to(work)
            status = copy.stat()
            assert other.stat().st_size == status.st_size, path
            shutil.copyfile(other, copy)
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        return tier

    return make


def opens(run: Any) -> dict[str, int]:
    return dict(run.sql("select outcome, sum(opens)::bigint from staged group by outcome"))


@needs("numpy", "PIL", "lmdb", "h5py")
def test_readers_of_arrays_images_and_containers_read_the_copies(
    recorded: Callable[..., Any], made: Made
) -> None:
    tier = made("""
        import tarfile, zipfile, io
        import h5py, lmdb, numpy as np
        from PIL import Image
        ones = np.full((64, 64), value, np.uint8)
        np.save("a.npy", ones)
        np.savez("a.npz", a=ones)
        ones.tofile("a.raw")
        Image.fromarray(ones).save("a.bmp")
        with tarfile.open("a.tar", "w") as tar:
            member = tarfile.TarInfo("a")
            member.size = ones.nbytes
            tar.addfile(member, io.BytesIO(ones.tobytes()))
        with zipfile.ZipFile("a.zip", "w") as file:
            file.writestr(zipfile.ZipInfo("a"), ones.tobytes())
        with h5py.File("a.h5", "w") as file:
            file["a"] = ones
        with lmdb.open("db", map_size=1 << 20) as db, db.begin(write=True) as put:
            put.put(b"a", ones.tobytes())
        """)
    run = recorded(
        """
        import tarfile, zipfile
        import h5py, lmdb, numpy as np
        from PIL import Image
        found = {
            "load": np.load("a.npy"), "memmap": np.load("a.npy", mmap_mode="r"),
            "npz": np.load("a.npz")["a"], "fromfile": np.fromfile("a.raw", np.uint8),
            "raw memmap": np.memmap("a.raw", np.uint8, "r"),
            "image": np.asarray(Image.open("a.bmp")),
            "tar": np.frombuffer(tarfile.open("a.tar").extractfile("a").read(), np.uint8),
            "zip": np.frombuffer(zipfile.ZipFile("a.zip").read("a"), np.uint8),
        }
        with h5py.File("a.h5", "r") as file:
            found["h5"] = file["a"][:]
        with lmdb.open("db", readonly=True, lock=False) as db, db.begin() as get:
            found["lmdb"] = np.frombuffer(get.get(b"a"), np.uint8)
        for name, array in found.items():
            assert array.size == 4096 and (array == 1).all(), name
        """,
        environment={"PENSTOCK_STAGED": str(tier.map)},
    )
    assert set(opens(run)) == {"served"}


@needs("torch", "safetensors")
def test_torch_reads_the_copies_and_so_do_its_workers(
    recorded: Callable[..., Any], made: Made
) -> None:
    tier = made("""
        import torch, safetensors.torch
        tensor = torch.full((1000,), float(value))
        torch.save(tensor, "a.pt")
        safetensors.torch.save_file({"a": tensor}, "a.safetensors")
        for number in range(16):
            open(f"item-{number}", "wb").write(bytes([value]) * 1000)
        """)
    run = recorded(
        """
        import torch, safetensors.torch
        from torch.utils.data import DataLoader, Dataset

        class Files(Dataset):
            def __len__(self):
                return 16

            def __getitem__(self, number):
                with open(f"item-{number}", "rb") as file:
                    return torch.tensor(list(file.read()))

        if __name__ == "__main__":
            for array in (torch.load("a.pt"), torch.load("a.pt", mmap=True),
                          safetensors.torch.load_file("a.safetensors")["a"],
                          torch.from_file("item-0", size=1000, dtype=torch.uint8)):
                assert array.numel() == 1000 and (array == 1).all()
            for context in ("fork", "spawn"):
                loader = DataLoader(Files(), 4, num_workers=2, multiprocessing_context=context)
                assert [(batch == 1).all().item() for batch in loader] == [True] * 4
        """,
        environment={"PENSTOCK_STAGED": str(tier.map)},
    )
    assert set(opens(run)) == {"served"}
    assert opens(run)["served"] >= 36


@needs("tensorflow")
def test_tensorflow_reads_the_copies_whole(recorded: Callable[..., Any], made: Made) -> None:
    tier = made("""
        import struct, zlib
        for number in range(3):
            open(f"fixed-{number}", "wb").write(bytes([value]) * 1000)
        open("text", "wb").write(b"%d\\n" % value * 500)
        """)
    run = recorded(
        """
        import tensorflow as tf
        assert tf.io.read_file("fixed-0").numpy() == bytes([1]) * 1000
        with tf.io.gfile.GFile("fixed-1", "rb") as file:
            assert file.size() == 1000 and file.read() == bytes([1]) * 1000
        assert tf.io.gfile.stat("fixed-1").length == 1000
        files = tf.data.Dataset.list_files("fixed-*")
        fixed = files.interleave(lambda name: tf.data.FixedLengthRecordDataset(name, 100))
        assert [record for record in fixed.as_numpy_iterator()] == [bytes([1]) * 100] * 30
        assert list(tf.data.TextLineDataset("text").as_numpy_iterator()) == [b"1"] * 500
        """,
        environment={"PENSTOCK_STAGED": str(tier.map), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert set(opens(run)) == {"served"}
    assert opens(run)["served"] >= 6
