"""A training program for lab/benchmarks/stage.py: reads files, waits as a step would.

python lab/benchmarks/stage_train.py FOLDER --workers 2 --batch 16 --step-ms 5 [--epochs 1]
"""

import argparse
import os
import time

import torch
from torch.utils.data import DataLoader, Dataset

import penstock


class WholeFiles(Dataset):  # type: ignore[type-arg]
    """Whole files, each read as by loaders: at once, to the end."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(
            f"{place}/{name}" for place, _, names in os.walk(folder) for name in names
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> torch.Tensor:
        with open(self.paths[place], "rb", buffering=0) as file:
            data = file.read()
        return torch.tensor([len(data), data[0] if data else 0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--epochs", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        WholeFiles(asked.folder),
        batch_size=asked.batch,
        shuffle=True,
        num_workers=asked.workers,
        generator=torch.Generator().manual_seed(int(os.environ.get("SEED", "1"))),
    )
    total, number = 0, 0
    for _ in range(asked.epochs):
        for batch in loader:
            with penstock.step(number):
                total += int(batch[:, 0].sum())
                time.sleep(asked.step_ms / 1e3)  # an accelerator's step: the CPU is free
            number += 1
    print(total)


if __name__ == "__main__":
    main()
