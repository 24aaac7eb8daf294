"""The recorder's counts and bytes against strace's, an observer that shares nothing with it.

Each program runs twice, once under strace and without us, once recorded: so the recorder is also
shown to change nothing in what the program asks of the kernel.
"""

import importlib.util
import random
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from counting import differences, recorded_calls, stdio_paths
from fixtures import thorough

FILES = 60


@pytest.fixture
def images(work: Path) -> Path:
    """Small files of many sizes, in two folders as a data set has them."""
    sizes = random.Random(7)
    for i in range(FILES):
        folder = work / "images" / f"class-{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:04}.bin").write_bytes(sizes.randbytes(sizes.randrange(1, 40_000)))
    return work / "images"


@pytest.fixture
def agree(
    work: Path, strace_counts: Callable[..., Any], recorded_command: Callable[..., Any]
) -> Callable[..., set[str]]:
    """Runs a command twice, from the same starting folder; returns the paths that stdio touched."""

    def compare(command: Sequence[str | Path]) -> set[str]:
        before = work.parent / "before"
        shutil.copytree(work, before)
        truth = strace_counts(command)
        shutil.rmtree(work)
        before.rename(work)
        run = recorded_command(command)
        recorded, stdio = recorded_calls(run, work), stdio_paths(run)
        assert truth, "strace saw nothing of this program"
        assert differences(truth, recorded, stdio) == []
        return {path for path in stdio if path.startswith(str(work))}

    return compare


def python(work: Path, source: str, *args: str) -> list[str | Path]:
    program = work.parent / "program.py"
    program.write_text(textwrap.dedent(source))
    return [sys.executable, program, *args]


@pytest.mark.usefixtures("images")
def test_a_small_file_reader_in_python(work: Path, agree: Callable[..., set[str]]) -> None:
    stdio = agree(
        python(
            work,
            """
            import gzip, json, mmap, os, pathlib, shutil, sqlite3, tempfile, zipfile

            total = 0
            for path in sorted(pathlib.Path("images").rglob("*.bin")):
                total += path.stat().st_size
                assert len(path.read_bytes()) == path.stat().st_size
                with open(path, "rb") as file:
                    file.seek(10)
                    while file.read(700):
                        pass
                with open(path, "rb") as file:
                    with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                        total -= len(mapped)
            os.mkdir("out")
            with open("out/log.txt", "w", buffering=1) as file:
                for i in range(20):
                    print(i, file=file)
                os.fsync(file.fileno())
            os.rename("out/log.txt", "out/log")
            json.dump({"total": total}, open("out/total.json", "w"))
            with gzip.open("out/z.gz", "wb") as file:
                file.write(bytes(100_000))
            with zipfile.ZipFile("out/z.zip", "w") as archive:
                archive.write("out/log")
            assert zipfile.ZipFile("out/z.zip").read("out/log")
            shutil.copyfile("out/z.gz", "out/copy.gz")
            with sqlite3.connect("out/db") as base:
                base.execute("create table t (a)")
                base.executemany("insert into t values (?)", [(i,) for i in range(500)])
            folder = os.open("out", os.O_RDONLY)
            fd = os.open("log", os.O_RDONLY, dir_fd=folder)
            assert os.pread(fd, 2, 0) == b"0\\n"
            os.lseek(fd, 4, os.SEEK_SET)
            os.readv(fd, [bytearray(3), bytearray(3)])
            os.ftruncate(os.open("out/copy.gz", os.O_RDWR), 10)
            try:
                open("out/missing")
            except FileNotFoundError:
                pass
            os.access("out/log", os.R_OK)
            os.unlink("out/total.json")
            os.remove("out/copy.gz")
            """,
        )
    )
    assert not stdio


@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [
        thorough("none", like="every other program"),
        "fork",
        "spawn",
        thorough("forkserver", like="spawn"),
    ],
)
@pytest.mark.usefixtures("images")
def test_a_dataloader_with_workers_of_every_kind(
    work: Path, agree: Callable[..., set[str]], start: str
) -> None:
    pytest.importorskip("torch")
    stdio = agree(
        python(
            work,
            """
            import pathlib, sys
            import torch

            class Files(torch.utils.data.Dataset):
                def __init__(self):
                    self.paths = sorted(pathlib.Path("images").rglob("*.bin"))
                def __len__(self):
                    return len(self.paths)
                def __getitem__(self, i):
                    with open(self.paths[i], "rb") as file:
                        return len(file.read())

            if __name__ == "__main__":
                workers = dict(num_workers=2, multiprocessing_context=sys.argv[1])
                if sys.argv[1] == "none":
                    workers = {}
                loader = torch.utils.data.DataLoader(Files(), batch_size=4, shuffle=True, **workers)
                # Workers that begin anew import torch, each epoch: it would take most of the time.
                for epoch in range(2 if sys.argv[1] in ("none", "fork") else 1):
                    assert sum(batch.numel() for batch in loader) == len(loader.dataset)
                    torch.save({"epoch": epoch, "w": torch.ones(50_000)}, f"epoch-{epoch}.pt")
                torch.load(f"epoch-{epoch}.pt")
            """,
            start,
        )
    )
    # torch writes its archives through a C++ stream, which opens with fopen.
    assert {Path(path).suffix for path in stdio} <= {".pt"}


def test_c_with_stdio(
    work: Path, agree: Callable[..., set[str]], workload: Callable[..., Path]
) -> None:
    (work / "text").write_text("ninechars\n" * 100)
    assert agree([workload("stdio")]) == {str(work / "text"), str(work / "out")}


@pytest.mark.parametrize(
    "name", ["reads", "writes", "copies", "dup_over", "thread_end", "maps", "syscalls"]
)
def test_c_by_descriptor(
    work: Path, agree: Callable[..., set[str]], workload: Callable[..., Path], name: str
) -> None:
    (work / "data").write_bytes(bytes(40960))
    (work / "other").write_bytes(bytes(40960))
    assert agree([workload(name)]) == set()


def test_a_shell_pipeline(work: Path, agree: Callable[..., set[str]]) -> None:
    lines = random.Random(7)
    (work / "in").write_text("".join(f"{lines.random()}\n" for _ in range(5000)))
    steps = ["cat in | sort > sorted", "cp sorted copy", "head -n 3 copy > some", "mv some few"]
    stdio = agree(["sh", "-c", "; ".join([*steps, "rm copy"])])
    assert str(work / "in") not in stdio


@pytest.mark.slow
@pytest.mark.usefixtures("images")
def test_a_tf_data_reader(work: Path, agree: Callable[..., set[str]]) -> None:
    if not importlib.util.find_spec("tensorflow"):
        pytest.skip("TensorFlow is not installed: pip install 'penstock[frameworks]'")
    agree(
        python(
            work,
            """
            import glob
            import tensorflow as tf

            paths = sorted(glob.glob("images/*/*.bin"))
            data = tf.data.Dataset.from_tensor_slices(paths)
            data = data.map(tf.io.read_file, num_parallel_calls=2)
            assert sum(1 for _ in data) == len(paths)
            with tf.io.TFRecordWriter("out.tfrecord") as writer:
                for item in data:
                    writer.write(item.numpy())
            assert sum(1 for _ in tf.data.TFRecordDataset("out.tfrecord")) == len(paths)
            """,
        )
    )
