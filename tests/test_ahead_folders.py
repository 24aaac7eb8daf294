"""`penstock run --ahead` of folders of small files.  The page cache (cachestat) is the truth."""

import random
from pathlib import Path

import pytest

from fixtures import thorough
from test_ahead import Ran, ahead
from test_ahead_programs import far, folder

__all__ = ["far", "folder", "run"]

run = ahead  # the fixture, by another name: parameters are called so

CLASSES = 5
OF_CLASS = 120
FILE_BYTES = 50_000
PROGRAM = """
import os, time, random
from pathlib import Path
files = sorted(Path(path).rglob("*.jpg"))
if {shuffled}:
    random.Random(1).shuffle(files)
def total():
    return sum(resident_bytes(file) for file in files)
for file in files[:{used}]:
    with open(file, "rb") as stream:
        time.sleep(0.004)  # as a decoder holds it open
        stream.read()
until_s = time.monotonic() + 120
while total() < 0.95 * {expected} and time.monotonic() < until_s:
    time.sleep(0.05)
print(total())
for file in files[{used}:]:
    file.read_bytes()
time.sleep(2)  # on a busy machine too, what was opened is seen
"""


def made(root: Path, n_classes: int) -> Path:
    """Write the files behind the tier, which has none of them in memory."""
    for number in range(n_classes):
        place = root / "set" / (f"class{number}" if n_classes > 1 else "")
        place.mkdir(parents=True, exist_ok=True)
        for name in range(CLASSES * OF_CLASS // n_classes):
            (place / f"{name:05}.jpg").write_bytes(random.randbytes(FILE_BYTES))
    return root / "set"


@pytest.mark.parametrize(
    ("n_classes", "shuffled"),
    [(CLASSES, True), (1, False),
     *(thorough(*how, like="others") for how in [(CLASSES, False), (1, True)])],
)  # fmt: skip
def test_the_other_files_of_a_set_come_into_memory(
    far: Path, folder: Path, run: Ran, n_classes: int, shuffled: bool
) -> None:
    """Of 600 files the program opens 250; then it waits until all are in memory."""
    made(folder / "behind", n_classes)
    size = CLASSES * OF_CLASS * FILE_BYTES
    source = PROGRAM.format(shuffled=shuffled, used=250, expected=size)
    facts, printed = run(source, far / "set")
    assert int(printed) >= 0.95 * size
    files = [entry for entry in facts["files"] if entry[1]]
    assert sum(entry[1] for entry in files) >= 0.3 * size
    assert sum(entry[2] for entry in files) >= 0.8 * sum(entry[1] for entry in files)
    assert all(entry[6].startswith(str(far / "set")) and entry[6].endswith("/") for entry in files)


def test_a_set_that_is_in_memory_is_left_alone(far: Path, folder: Path, run: Ran) -> None:
    made(folder / "behind", 1)
    for file in (far / "set").iterdir():
        file.read_bytes()
    facts, _ = run(PROGRAM.format(shuffled=True, used=250, expected=0), far / "set")
    assert facts["files"] == []


def test_files_removed_and_cut_while_they_are_read_ahead_do_no_harm(
    far: Path, folder: Path, run: Ran
) -> None:
    made(folder / "behind", 1)
    source = """
    import os
    from pathlib import Path
    files = sorted(Path(path).rglob("*.jpg"))
    for number in range(0, 300, 3):
        with open(files[number], "rb") as stream:
            time.sleep(0.004)
            assert len(stream.read()) == 50_000
        os.unlink(files[599 - number])
        os.truncate(files[number + 1], 10)
    print(len(files))
    """
    facts, printed = run(source, far / "set")
    assert (facts["state"], printed.strip()) == ("on", "600")
