"""The demonstration: a small model trained from JPEG files, without workers and with two.

    penstock run -o demo/run python -m penstock_lab.demo

Trains in the usual way, without any knowledge of Penstock; except

    python -m penstock_lab.demo --fast FOLDER

with saves through a Checkpointer, so that `penstock compare` shows the change.  With `--saves
FOLDER` the checkpoints go to a separate folder: to slow storage.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from penstock_lab.jpegs import make_jpegs

__all__ = ["main"]


class Pictures(Dataset[Any]):  # type: ignore[misc]  # torch is not type-checked here
    """Files below a folder, and the number of each file's folder."""

    def __init__(self, folder: Path, side: int = 96) -> None:
        self.paths = sorted(folder.glob("*/*.jpg"))
        classes = sorted({path.parent.name for path in self.paths})
        self.labels = [classes.index(path.parent.name) for path in self.paths]
        self.n_classes = len(classes)
        self.side = side

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[number]) as picture:
            small = picture.convert("RGB").resize((self.side, self.side))
        pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
        return pixels.reshape(self.side, self.side, 3).permute(2, 0, 1) / 255, self.labels[number]


def make_model(n_classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for narrow, wide in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(narrow, wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, n_classes))


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> float:
    """Return the mean loss of an epoch."""
    total = 0.0
    for pictures, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
    return total / len(loader.dataset)


def make_saver(
    folder: Path, fast: Path | None
) -> tuple[Callable[[int, Any], Any], Callable[[], None]]:
    """Return a function that saves a state under a number, and a function for the end."""
    if fast is None:
        return lambda number, state: torch.save(state, folder / f"checkpoint-{number}.pt"), (
            lambda: None
        )
    from penstock.save.training.checkpointer import Checkpointer

    checkpointer = Checkpointer(fast, folder / "saved")
    return checkpointer.save, checkpointer.close


def main() -> None:
    """Make missing files, then train two epochs for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("demo"))
    parser.add_argument("--files", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=2, help="for each number of workers")
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 2])
    parser.add_argument(
        "--fast", type=Path, help="save there through a Checkpointer, drained to --saves/saved"
    )
    parser.add_argument("--saves", type=Path, help="where checkpoints go; --folder unless told")
    options = parser.parse_args()

    made = make_jpegs(options.folder / "jpegs", options.files)
    if made:
        print(f"made {made} JPEG files in {options.folder / 'jpegs'}", flush=True)
    torch.manual_seed(1)
    torch.set_num_threads(1)  # the other core is for the workers
    data = Pictures(options.folder / "jpegs")
    model = make_model(data.n_classes)
    optimizer = torch.optim.AdamW(model.parameters())
    save, finish = make_saver(options.saves or options.folder, options.fast)
    number = 0
    for workers in options.workers:
        for _ in range(options.epochs):
            number += 1
            start_s = time.perf_counter()
            loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=workers)
            loss = train_epoch(model, optimizer, loader)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(number, state)
            elapsed_s = time.perf_counter() - start_s
            print(
                f"epoch {number}: {workers} workers, loss {loss:.3f}, {elapsed_s:.1f} s", flush=True
            )
    finish()


if __name__ == "__main__":
    main()
