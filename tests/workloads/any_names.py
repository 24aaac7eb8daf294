"""Does by chance what programs do with checkpoints, and says what came of each: seed, steps, and a
folder on another file system are its words.  Every step is left whole: what it says and leaves is
to be the same whatever is beneath."""

import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

Step = Callable[[random.Random, Path, int], str]

FOLDERS = ("a", "b", "a/c", "b/c")
NAMES = ("x.pt", "y.ckpt", "z.bin", "notes.txt")


def main(seed: int, steps: int, other: Path) -> None:
    chance = random.Random(seed)
    for step in range(steps):
        do = chance.choice((write,) * 4 + OTHERS)
        if chance.random() < 0.02:
            time.sleep(chance.random() / 2)  # so that what is there comes home
        try:
            said = do(chance, other, step)
        except OSError as error:
            said = type(error).__name__
        print(step, do.__name__, said, flush=True)


def any_path(chance: random.Random, other: Path) -> Path:
    top = other if chance.random() < 0.15 else Path()
    return top / chance.choice(FOLDERS) / chance.choice(NAMES)


def any_folder(chance: random.Random, other: Path) -> Path:
    return (other if chance.random() < 0.15 else Path()) / chance.choice(FOLDERS)


def write(chance: random.Random, other: Path, step: int) -> str:
    path, mode = any_path(chance, other), chance.choice(("wb", "wb", "wb", "ab", "r+b", "xb"))
    if chance.random() < 0.8:
        path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.write(b"%d " % step * chance.choice((1, 1000, 100_000)))
    return f"{path} {mode}"


def aside(chance: random.Random, other: Path, step: int) -> str:
    path = any_path(chance, other)
    draft = path.with_name(f"{path.name}.tmp")
    draft.write_bytes(b"%d" % step)
    draft.replace(path)
    return str(path)


def read(chance: random.Random, other: Path, step: int) -> str:
    path = any_path(chance, other)
    data = path.read_bytes()
    return f"{path} {len(data)} {data[:8]!r} {path.stat().st_size}"


def asked(chance: random.Random, other: Path, step: int) -> str:
    path = any_path(chance, other)
    real = os.path.relpath(path.resolve(strict=True), other if path.is_absolute() else None)
    os.utime(path, (step, step), follow_symlinks=False)
    kinds = sorted((one.name, one.is_symlink()) for one in os.scandir(path.parent))
    return f"{real} {path.is_symlink()} {kinds} {path.stat().st_mtime}"


def listed(chance: random.Random, other: Path, step: int) -> str:
    folder = any_folder(chance, other)
    return f"{folder} {sorted(os.listdir(folder))}"


def removed(chance: random.Random, other: Path, step: int) -> str:
    path = any_path(chance, other)
    path.unlink()
    return str(path)


def folder_removed(chance: random.Random, other: Path, step: int) -> str:
    folder = any_folder(chance, other)
    shutil.rmtree(folder)
    return str(folder)


def of_two(
    name: str,
    any_one: Callable[[random.Random, Path], Path],
    do: Callable[[Path, Path, random.Random], object],
) -> Step:
    def step(chance: random.Random, other: Path, number: int) -> str:
        path, to = any_one(chance, other), any_one(chance, other)
        do(path, to, chance)
        return f"{path} {to}"

    step.__name__ = name
    return step


renamed = of_two("renamed", any_path, lambda path, to, chance: os.rename(path, to))
moved = of_two("moved", any_path, lambda path, to, chance: shutil.move(path, to))
copied = of_two(
    "copied",
    any_path,
    lambda path, to, chance: shutil.copy2(path, to, follow_symlinks=chance.random() < 0.5),
)
folder_renamed = of_two("folder_renamed", any_folder, lambda path, to, chance: os.rename(path, to))
folder_moved = of_two("folder_moved", any_folder, lambda path, to, chance: shutil.move(path, to))
folder_copied = of_two(
    "folder_copied",
    any_folder,
    lambda path, to, chance: shutil.copytree(path, to, symlinks=chance.random() < 0.5),
)

OTHERS = (
    aside, aside, read, read, asked, listed, removed, renamed, renamed, moved, moved, copied,
    folder_renamed, folder_moved, folder_copied, folder_removed,
)  # fmt: skip

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
