"""Does by chance what programs do with checkpoints, and says what came of each: seed, steps, and a
folder on another file system are its words.  Every step is left whole: what it says and leaves is
to be the same whatever is beneath."""

import os
import random
import shutil
import subprocess
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


def truncated(chance: random.Random, other: Path, step: int) -> str:
    path, size = any_path(chance, other), chance.choice((3, 5000))
    os.truncate(path, size)
    return f"{path} {size} {path.stat().st_size}"


def mode_changed(chance: random.Random, other: Path, step: int) -> str:
    path = any_path(chance, other)
    path.chmod(chance.choice((0o600, 0o640, 0o644)))
    return f"{path} {path.stat().st_mode:o}"


def linked(chance: random.Random, other: Path, step: int) -> str:
    """As trainers do who name the newest: last.ckpt leads to it, changed in one moment."""
    path = any_path(chance, other)
    draft = path.with_name("last.tmp")
    draft.symlink_to(path.name)
    draft.replace(path.with_name("last.ckpt"))
    return f"{path}"


def read_by_link(chance: random.Random, other: Path, step: int) -> str:
    path = any_folder(chance, other) / "last.ckpt"
    real = os.path.relpath(path.resolve(strict=True), other if path.is_absolute() else None)
    return f"{path} {path.readlink()} {real} {path.read_bytes()[:8]!r} {path.is_symlink()}"


def by_child(chance: random.Random, other: Path, step: int) -> str:
    do, seed = chance.choice((write, aside, renamed, removed)), chance.random()
    child = os.fork()
    if not child:
        try:
            do(random.Random(seed), other, step)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return do.__name__


def by_command(chance: random.Random, other: Path, step: int) -> str:
    path, to = (str(any_path(chance, other)) for _ in range(2))
    folder = str(any_folder(chance, other))
    words: list[str] = chance.choice((
        ["cp", "-a", path, to], ["cp", path, to], ["mv", "-f", path, to], ["rm", "-rf", folder],
        ["stat", "-c", "%F %s %a", path], ["cat", path], ["sh", "-c", f"echo {step} >{path}"],
        ["sh", "-c", f"echo {step} >>{path}"], ["find", folder, "-type", "f", "-delete"],
        ["dd", "if=/dev/zero", f"of={path}", "bs=10", "count=1", "conv=notrunc"],
        ["test", "-L", path],
    ))  # fmt: skip
    done = subprocess.run(words, capture_output=True)
    return f"{words} {done.returncode} {done.stdout[:40]!r}"


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
    folder_renamed, folder_moved, folder_copied, folder_removed, truncated, mode_changed, linked,
    read_by_link, by_child, by_child, by_command, by_command, by_command,
)  # fmt: skip

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
