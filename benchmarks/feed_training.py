"""One training from an LMDB of JPEGs, read by py-lmdb and by FeedDataset, and both compared.

    python benchmarks/feed_training.py --folder /mnt/slow --records 4000

Recorded by `penstock run`, the file evicted before each; prints what compare says.  The runs stay
in the folder for a look: penstock report FOLDER/lmdb, penstock report FOLDER/feed.
"""

import argparse
import io
import os
import subprocess
import sys
from pathlib import Path

from bars import PENSTOCK, Bar, report, scratch

from penstock import tiers
from penstock.measures import measure
from penstock.run import open_run

COMMAND = "python benchmarks/feed_training.py"

TRAINING = """
import io, sys
import lmdb, numpy, torch
from PIL import Image
path, reader = sys.argv[1:]

def decoded(data):
    with Image.open(io.BytesIO(data)) as image:
        image.draft("RGB", (64, 64))
        small = image.convert("RGB").resize((32, 32))
    pixels = torch.from_numpy(numpy.asarray(small).copy())
    return pixels.permute(2, 0, 1).float() / 255, len(data) % 10

class Plain(torch.utils.data.Dataset):
    env = None
    def __init__(self):
        with lmdb.open(path, readonly=True, lock=False) as env:
            self.n = env.stat()["entries"]
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        if self.env is None:
            self.env = lmdb.open(path, readonly=True, lock=False, readahead=False, meminit=False)
        with self.env.begin() as txn:
            return decoded(txn.get(b"%08d" % i))

if reader == "feed":
    from penstock.adapters.torch import FeedDataset
    dataset = FeedDataset(path, decode=lambda record: decoded(record.tobytes()))
else:
    dataset = Plain()
torch.manual_seed(1)
torch.set_num_threads(1)
loader = torch.utils.data.DataLoader(dataset, 32, shuffle=True, num_workers=1)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(7200, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for images, labels in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
"""


def made(folder: Path, n: int) -> Path:
    """JPEGs of about 100 KB: noise, which compresses badly, that a decoder takes."""
    import lmdb
    import numpy as np
    from PIL import Image

    path, random = folder / "jpegs.lmdb", np.random.default_rng(1)
    if (path / f"done-{n}").exists():
        return path
    pictures = []
    for _ in range(20):
        buffer = io.BytesIO()
        noise = random.integers(0, 255, (220, 220, 3), np.uint8)
        Image.fromarray(noise).save(buffer, "JPEG", quality=95)
        pictures.append(buffer.getvalue())
    path.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(path), map_size=n * 200_000 + (1 << 26)) as env:
        with env.begin(write=True) as txn:
            for i in range(n):
                txn.put(b"%08d" % i, pictures[i % 20] + os.urandom(i % 1000), append=True)
        env.sync(True)
    (path / f"done-{n}").touch()
    return path


def recorded(folder: Path, path: Path, reader: str) -> Path:
    run = folder / reader
    if run.exists():
        import shutil

        shutil.rmtree(run)
    tiers.evict(path / "data.mdb")
    program = folder / "training.py"
    program.write_text(TRAINING)
    command = [PENSTOCK, "run", "-q", "-o", run, "--", sys.executable, program, path, reader]
    subprocess.run(command, check=True)
    return run


def main(folder: Path | None = None, n: int = 4000) -> list[Bar]:
    place = folder or scratch("feed-training")
    path = made(place, n)
    runs = [recorded(place, path, reader) for reader in ("lmdb", "feed")]
    print(subprocess.run([PENSTOCK, "compare", *runs], capture_output=True, text=True).stdout)
    waits = []
    for folder_ in runs:
        with open_run(folder_) as run:
            waits.append(measure(run).training.data_wait_s or 0.0)
    before, after = waits
    measured = f"{after:.2f} s against {before:.2f} s"
    return [Bar("data wait, FeedDataset / py-lmdb", "< 1", measured, after < before, COMMAND)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--records", type=int, default=4000)
    asked = parser.parse_args()
    report(main(asked.folder, asked.records))
