"""IterableDatasets with workers: batches are counted exactly, and who reads which file is known."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.explain.measures import measure
from penstock.runs.run import open_run

pytest.importorskip("torch", reason="torch is not installed: pip install 'penstock[torch]'")
pytestmark = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)

# 8 files of 4 items in batches of 2; the last way reads them for two epochs with workers that stay.
PROGRAM = """
import json, os
import penstock, torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

for number in range(8):
    open(f"{number}.bin", "wb").write(os.urandom(4000))

class Items(IterableDataset):
    def __init__(self, way):
        self.way = way

    def __iter__(self):
        worker, files = get_worker_info().id, list(range(8))
        if self.way != "doubled":
            files = files[worker::3] if self.way != "uneven" else [files, [], []][worker]
        for number in files:
            with open(f"{number}.bin", "rb", buffering=0) as file:
                while item := file.read(1000):
                    yield item[0]

if __name__ == "__main__":
    counts = {}
    for way, epochs in (("doubled", 1), ("shared", 1), ("uneven", 1), ("stay", 2)):
        with penstock.record(way):
            loader = DataLoader(Items(way), 2, num_workers=3, persistent_workers=way == "stay")
            counts[way] = [sum(1 for _ in loader) for _ in range(epochs)]
            del loader
    json.dump(counts, open("counts.json", "w"))
"""


def test_batches_and_readers_are_those_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    finished = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    counts = json.loads((tmp_path / "counts.json").read_text())
    whole = {}
    for way, batches in counts.items():
        with open_run(tmp_path / way) as run:
            known = measure(run)
        assert [row.batches for row in known.epochs] == batches
        assert sum(row.fetches for row in known.workers) == sum(batches)
        (seen,) = known.worker_sharing
        assert (seen.workers, seen.files) == (3, 8)
        whole[way] = seen.whole_files
    assert counts["doubled"] == [48]
    assert whole == {"doubled": 8, "shared": 0, "uneven": 0, "stay": 0}
