"""What `penstock bench checkpoint FOLDER` wrote goes into docs/experiments, its picture into the
page.

    python benchmarks/checkpoint_page.py build/experiments/checkpoint
"""

import shutil
import sys
from pathlib import Path

from bars import ROOT

EXPERIMENTS = ROOT / "docs" / "experiments"
PICTURE = "\n![what each way takes, and what is written when](checkpoint/checkpoint.png)\n"
BEFORE = "\n## What the study found\n"


def main(folder: Path) -> None:
    (EXPERIMENTS / "checkpoint").mkdir(exist_ok=True)
    for ending in ("md", "csv", "json", "png"):
        shutil.copy(folder / f"checkpoint.{ending}", EXPERIMENTS / "checkpoint")
    page = EXPERIMENTS / "checkpoint.md"
    text = page.read_text()
    if PICTURE not in text:
        page.write_text(text.replace(BEFORE, PICTURE + BEFORE))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
