"""An epoch of a torch DataLoader over 10,000 JPEGs, recorded and not, with 0 and with 2 workers.

With decoding, as in a training; and, for comparison, only reading, unlike any training.
"""

import shutil
import sys
import time
from pathlib import Path

from bars import Bar, output, paired, report, scratch

import penstock
from penstock_lab.jpegs import make_jpegs

IMAGES = 10_000
PAIRS = 4  # an epoch with decoding takes half a minute
PAIRS_READ = 15
RATIO = 1.01


def main() -> list[Bar]:
    images = scratch("jpegs")
    make_jpegs(images, IMAGES, n_classes=10)
    return [_bar(images, workers, decodes) for decodes in (True, False) for workers in (0, 2)]


def _bar(images: Path, workers: int, decodes: bool) -> Bar:
    mode = "decode" if decodes else "read"
    rounds = output([sys.executable, __file__, mode, images, str(workers)]).split()
    measured = paired(list(map(float, rounds)))
    low, high = measured.ratio_spread
    each_us = measured.difference / IMAGES * 1e6
    what = "DataLoader epoch" if decodes else "for comparison, only reading"
    return Bar(
        what=f"{what}, {IMAGES:,} JPEGs of 100 kB, {workers} workers",
        bar=f"≤ ×{RATIO}" if decodes else "–",
        measured=f"×{measured.ratio:.3f} ({low:.3f} to {high:.3f}; {each_us:+.1f} µs a file)",
        is_met=measured.ratio <= RATIO if decodes else None,
        command="python lab/benchmarks/dataloader.py",
    )


def job(folder: Path, workers: int, decodes: bool) -> None:
    """Print the seconds of each epoch: without and with a window in turn, ending without."""
    import numpy as np
    import torch
    from PIL import Image

    class DecodedImages(torch.utils.data.Dataset[torch.Tensor]):
        def __init__(self) -> None:
            self.paths = sorted(folder.glob("*/*.jpg"))

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, i: int) -> torch.Tensor:
            if not decodes:
                return torch.tensor(len(self.paths[i].read_bytes()))
            with Image.open(self.paths[i]) as image:
                return torch.from_numpy(np.array(image.convert("L").resize((64, 64))))

    def epoch_s() -> float:
        loader = torch.utils.data.DataLoader(
            DecodedImages(), batch_size=64, shuffle=True, num_workers=workers
        )
        start_s = time.perf_counter()
        assert sum(len(batch) for batch in loader) == IMAGES
        return time.perf_counter() - start_s

    torch.set_num_threads(1)
    epoch_s()  # fills the page cache
    print(epoch_s())
    log = scratch("dataloader")
    for i in range(PAIRS if decodes else PAIRS_READ):
        with penstock.record(log / f"run-{i}"):
            print(epoch_s())
        print(epoch_s())
    shutil.rmtree(log)


if __name__ == "__main__":
    if sys.argv[1:]:
        job(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[1] == "decode")
    else:
        report(main())
