"""The training of the demonstration: a small network learns the slant of stripes, in NumPy alone.

    python -m penstock.trial.demo.job http://127.0.0.1:8000/           # a request after another
    python -m penstock.trial.demo.job http://127.0.0.1:8000/ --feed    # by penstock.feed

Both read the same objects, each epoch in a random order, and train the same model.
"""

from __future__ import annotations

import argparse
import re
import sys
import urllib.request
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

import penstock

__all__ = ["BATCH", "CLASSES", "SIDE", "main", "picture"]

SIDE = 184  # a picture has 184 x 184 x 3 bytes: 100 KB
CLASSES = 8
BATCH = 32
COARSE = 4  # the model sees every fourth pixel
HIDDEN = 1024


def picture(number: int) -> bytes:
    """Return picture `number`: stripes and noise.  The slant is the class, number % CLASSES."""
    random = np.random.default_rng(number)
    slant = np.pi * (number % CLASSES) / CLASSES
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    wave = np.sin((x * np.cos(slant) + y * np.sin(slant)) / 4 + random.uniform(0, 0.5))
    noise = random.normal(0, 40, (SIDE, SIDE, 3))
    pixels = 128 + 60 * wave[..., None] + noise
    return bytes(pixels.clip(0, 255).astype(np.uint8).tobytes())


class Model:
    """A network of one hidden layer, trained by gradient descent."""

    def __init__(self, random: np.random.Generator) -> None:
        n_inputs = (SIDE // COARSE) ** 2 * 3
        self.hidden = random.normal(0, n_inputs**-0.5, (n_inputs, HIDDEN)).astype(np.float32)
        self.output = np.zeros((HIDDEN, CLASSES), np.float32)

    def train(
        self, pixels: NDArray[np.float32], classes: NDArray[np.int64], rate: float = 0.05
    ) -> float:
        """Train on a batch.  pixels: (n, inputs), 0 to 1.  Return the mean loss before the step."""
        inputs = pixels - 0.5
        active = np.maximum(inputs @ self.hidden, 0)
        scores = active @ self.output
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(classes))
        loss = float(-np.log(chances[rows, classes] + 1e-9).mean())
        chances[rows, classes] -= 1
        error = chances / np.float32(len(classes))
        back = (error @ self.output.T) * (active > 0)
        self.output -= rate * (active.T @ error)
        self.hidden -= rate * (inputs.T @ back)
        return loss


def batches_by_requests(
    url: str, random: np.random.Generator
) -> Iterator[tuple[list[int], list[bytes]]]:
    """Read one object after the other, as a data set with `urlopen` in `__getitem__` does."""
    with urllib.request.urlopen(url) as page:
        n_objects = len(re.findall(rb"<a href=", page.read()))
    order = random.permutation(n_objects).tolist()
    for first in range(0, n_objects, BATCH):
        numbers = order[first : first + BATCH]
        records = []
        for number in numbers:
            with urllib.request.urlopen(f"{url}{number:05}.rgb") as answer:
                records.append(answer.read())
        yield numbers, records


def batches_by_feed(
    url: str, random: np.random.Generator
) -> Iterator[tuple[list[int], list[bytes]]]:
    """Read the same objects with many requests at once."""
    with penstock.feed.Feed(url, BATCH, shuffle="global", seed=int(random.integers(99))) as feed:
        for batch in feed:
            yield batch.records.tolist(), [bytes(record) for record in batch]


def main() -> None:
    """Train some epochs; print the loss of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--feed", action="store_true", help="read by penstock.feed")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    random = np.random.default_rng(1)
    model = Model(random)
    read = batches_by_feed if options.feed else batches_by_requests
    for epoch in range(1, options.epochs + 1):
        losses = []
        for numbers, records in read(options.url, random):
            with penstock.step():
                pixels = np.stack([np.frombuffer(record, np.uint8) for record in records])
                coarse = pixels.reshape(-1, SIDE, SIDE, 3)[:, ::COARSE, ::COARSE]
                inputs = coarse.reshape(len(records), -1).astype(np.float32) / np.float32(255)
                losses.append(model.train(inputs, np.array(numbers) % CLASSES))
        sys.stdout.write(f"epoch {epoch}: loss {np.mean(losses):.3f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
