"""A small data set of JPEG files, a folder per class, as for an image-folder loader.

python -m penstock_lab.jpegs FOLDER
"""

from __future__ import annotations

import io
import random
import sys
from pathlib import Path
from typing import Any

from penstock_lab.needs import imported

__all__ = ["make_jpegs", "picture"]

# ImageNet's files: log-normal, median 109 kB (its own listing).  A sigma of 0.5 puts nine of ten
# between 45 and 230 kB.
MEDIAN_BYTES = 100_000
SIGMA = 0.5
PIXELS_PER_BYTE = 2.7  # of the picture below at QUALITY: the median comes out within 10 %
QUALITY = 85


def make_jpegs(folder: Path, n_files: int = 600, n_classes: int = 6, seed: int = 1) -> int:
    """Make `n_files` files below `folder`, except existing files; return the number of new files.

    Raises MissingDependency without Pillow.
    """
    paths = [
        folder / f"class-{number % n_classes}" / f"{number:05}.jpg" for number in range(n_files)
    ]
    if all(path.exists() for path in paths):
        return 0
    pillow = imported("PIL.Image", "making pictures")
    chance = random.Random(seed)
    noise = pillow.effect_noise((2048, 2048), 60)
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        n_bytes = MEDIAN_BYTES * chance.lognormvariate(0, SIGMA)
        side = min(1600, max(64, int((n_bytes * PIXELS_PER_BYTE) ** 0.5)))
        path.write_bytes(picture(pillow, noise, side, number % n_classes, chance))
    return len(paths)


def picture(image: Any, noise: Any, side: int, label: int, chance: random.Random) -> bytes:
    """Draw shapes over grain, as compressible as a photograph, in the colour of a class."""
    bands = []
    for band in range(3):
        left, top = chance.randrange(2048 - side), chance.randrange(2048 - side)
        grain = noise.crop((left, top, left + side, top + side))
        shape = image.radial_gradient("L").resize((side, side)).rotate(chance.randrange(360))
        mixed = image.blend(grain, shape, chance.uniform(0.5, 0.8))
        tint = 160 if label >> band & 1 else 96
        bands.append(image.blend(mixed, image.new("L", mixed.size, tint), 0.2))
    file = io.BytesIO()
    image.merge("RGB", bands).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


if __name__ == "__main__":
    make_jpegs(Path(sys.argv[1]))
