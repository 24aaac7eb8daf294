"""What another library has written becomes durable and gets a manifest, where it lies.

The last line of defence of writers that sync nothing: every file and folder is synced, every byte
summed, and only then comes the manifest, which is what says that the checkpoint is whole.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import SaveError, TierError
from penstock.places.stores import LocalStore, beside, draft_of, fsync_folder
from penstock.save.commit import sum_of
from penstock.save.manifest import BESIDE, INSIDE, Manifest, to_json

__all__ = [
    "adopt_files",
    "adopt_folder",
    "draft_of",
    "forget_note",
    "forget_orphans",
    "replace_file",
]


def adopt_folder(folder: Path, step: int | None, kind: str, world_size: int = 1) -> Manifest:
    """A checkpoint that is a folder, finished by its writer.  Raises TierError; SaveError: there is
    nothing in it."""
    names, folders = [], [folder]
    for here, inner, files in os.walk(folder):
        folders += [Path(here) / name for name in inner]
        names += [os.path.relpath(Path(here) / name, folder) for name in files]
    names = sorted(name for name in names if name != INSIDE)
    if not names:
        raise SaveError(f"{folder}: nothing in it")
    manifest = _summed(folder, names, step, kind, world_size)
    for one in reversed(folders):
        fsync_folder(one)
    LocalStore(folder).put(INSIDE, to_json(manifest))
    fsync_folder(folder.parent)
    return manifest


def adopt_files(folder: Path, name: str, files: Sequence[str], step: int | None, kind: str) -> None:
    """A checkpoint that is a file, or several with one beginning: `name`, below `folder`.

    Raises TierError."""
    manifest = _summed(folder, sorted(files), step, kind, 1)
    fsync_folder((folder / name).parent)
    LocalStore(folder).put(beside(name, BESIDE), to_json(manifest))


def _summed(
    folder: Path, names: Sequence[str], step: int | None, kind: str, world_size: int
) -> Manifest:
    try:
        sums = tuple(sum_of(folder, name, is_synced=False) for name in names)
    except OSError as error:
        raise TierError(f"{error.filename or folder}: {error.strerror}") from error
    return Manifest(sums, step, world_size, kind).now()


def replace_file(draft: Path, path: Path) -> None:
    """A finished draft takes a name in one moment, durably.  The manifest of what had the name
    before goes first: it would call the new bytes damaged.  Raises TierError."""
    try:
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        forget_note(path)
        draft.replace(path)
        fsync_folder(path.parent)
    except OSError as error:
        raise TierError(f"{path}: {error.strerror}") from error


def forget_note(path: Path) -> None:
    """Removes the manifest of a checkpoint that is a file.  Raises OSError."""
    path.with_name(beside(path.name, BESIDE)).unlink(missing_ok=True)


def forget_orphans(folder: Path) -> None:
    """Removes manifests whose checkpoint its own library has removed."""
    found = [path.name for path in folder.iterdir()]
    known = {beside(name, BESIDE) for one in found for name in (one, one.removesuffix(".index"))}
    for name in found:
        if name.endswith(BESIDE) and name not in known:
            (folder / name).unlink(missing_ok=True)
