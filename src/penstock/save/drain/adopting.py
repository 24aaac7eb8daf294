"""Make a checkpoint of another library durable, and add a manifest, in place.

For libraries that sync nothing: every file and folder is synced and every byte is summed.  Only
then the manifest is written: a manifest marks the checkpoint as whole.
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
    """Adopt a checkpoint folder that the writer has finished.  Raises TierError; SaveError: the
    folder is empty."""
    names, folders = [], [folder]
    for here, inner, files in os.walk(folder):
        folders += [Path(here) / name for name in inner]
        names += [os.path.relpath(Path(here) / name, folder) for name in files]
    names = sorted(name for name in names if name != INSIDE)
    if not names:
        raise SaveError(f"{folder}: nothing in it")
    manifest = _summed(folder, names, step, kind, world_size)
    for new_folder in reversed(folders):
        fsync_folder(new_folder)
    LocalStore(folder).put(INSIDE, to_json(manifest))
    fsync_folder(folder.parent)
    return manifest


def adopt_files(folder: Path, name: str, files: Sequence[str], step: int | None, kind: str) -> None:
    """Adopt a checkpoint of a file, or of several files with a common prefix.  name: the file or
    the prefix, below `folder`.  Raises TierError."""
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
    """Move a finished draft to a path, atomically and durably.  The manifest of the earlier file at
    the path is removed first: otherwise the new bytes would count as damaged.  Raises TierError."""
    try:
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        forget_note(path)
        draft.replace(path)
        fsync_folder(path.parent)
    except OSError as error:
        raise TierError(f"{path}: {error.strerror}") from error


def forget_note(path: Path) -> None:
    """Remove the manifest of a checkpoint file.  Raises OSError."""
    path.with_name(beside(path.name, BESIDE)).unlink(missing_ok=True)


def forget_orphans(folder: Path) -> None:
    """Remove the manifests of checkpoints removed by their own library."""
    names = [path.name for path in folder.iterdir()]
    companions = {
        beside(name, BESIDE) for file in names for name in (file, file.removesuffix(".index"))
    }
    for name in names:
        if name.endswith(BESIDE) and name not in companions:
            (folder / name).unlink(missing_ok=True)
