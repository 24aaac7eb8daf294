"""A benchmark: a checkpoint of many small files, copied by the burst buffer's drain and by other
tools.

    python benchmarks/small_files.py [N]      default: 20,000 files of 258 B

All copies go from /dev/shm to BENCH_FOLDER (build/bench) and are as durable as the drain's copy:
`cp -r` with a sync of the target file system, rsync with --fsync where rsync is installed, and 16
threads that write, sync and close, with the folder synced at the end.  Only the drain reads each
file back and renames each file after its sync.  The last column is the shortest time of the other
tools as a share of the drain's time: a higher share is better.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bars import scratch

from penstock.save.burst import Burst, prepare
from penstock.save.working import Settings
from penstock.stores import fsync_folder

__all__ = ["main"]

THREADS = 16


def main(n_files: int) -> None:
    target = scratch("small-files")
    shutil.rmtree(target, ignore_errors=True)
    tier = Path(tempfile.mkdtemp(dir="/dev/shm"))
    source = tier / "source"
    source.mkdir()
    for number in range(n_files):
        (source / f"part-{number:05d}.pt").write_bytes(b"pk" + number.to_bytes(4, "little") * 64)
    try:
        ways: dict[str, Callable[[Path], None]] = {
            "cp -r, sync": lambda to: _cp(source, to),
            "16 threads": lambda to: _threads(source, to),
            "the drain": lambda to: _drain(tier, to),
        }
        if shutil.which("rsync"):
            ways = {"rsync --fsync": lambda to: _rsync(source, to), **ways}
        took_s = {}
        for name, way in ways.items():
            to = target / "to"
            to.mkdir(parents=True)
            if name == "the drain":
                _links(source, tier, to)
            begun_s = time.perf_counter()
            way(to)
            took_s[name] = time.perf_counter() - begun_s
            found = [path for path in to.rglob("part-*.pt") if not path.is_symlink()]
            assert len(found) == n_files, (name, len(found))
            shutil.rmtree(target)
    finally:
        shutil.rmtree(tier)
    best_s = min(seconds for name, seconds in took_s.items() if name != "the drain")
    print(f"{n_files:,} files of 258 B\n\n| way | s | files/s | best of the others / this |")
    print("| --- | --- | --- | --- |")
    for name, seconds in took_s.items():
        ratio = f"{best_s / seconds:.2f}" if name == "the drain" else ""
        print(f"| {name} | {seconds:.2f} | {n_files / seconds:,.0f} | {ratio} |")


def _cp(source: Path, to: Path) -> None:
    subprocess.run(["cp", "-r", source, to], check=True)
    subprocess.run(["sync", "-f", to], check=True)


def _rsync(source: Path, to: Path) -> None:
    subprocess.run(["rsync", "-r", "--fsync", source, to], check=True)


def _threads(source: Path, to: Path) -> None:
    def copy(path: Path) -> None:
        data = path.read_bytes()
        with (to / path.name).open("wb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(copy, source.iterdir()))
    fsync_folder(to)


def _links(source: Path, tier: Path, to: Path) -> None:
    """Lay the files out as a program leaves them after a write through the burst buffer."""
    prepare(tier)
    for number, path in enumerate(sorted(source.iterdir())):
        name = f"{time.time_ns():016x}{number:08x}-{path.name}"
        (tier / "burst/home" / name).symlink_to(to / path.name)
        shutil.copyfile(path, tier / "burst/data" / name)
        (to / path.name).symlink_to(tier / "burst/data" / name)


def _drain(tier: Path, to: Path) -> None:
    with Burst(tier, Settings()) as drain:
        assert drain.once() == []
    assert not any((tier / "burst/data").iterdir())
    assert to.is_dir()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
