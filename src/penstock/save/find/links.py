"""Find the symbolic links of a tier to checkpoints of the tier.

A checkpoint with a link (`best -> epoch_3`) is in use, and no rule removes the checkpoint or the
link.  The module follows no link out of the tier.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.places.stores import LocalStore, Store
from penstock.save.commit import STATE

if TYPE_CHECKING:
    from penstock.save.checkpoint import Checkpoint

__all__ = ["is_link", "is_linked", "targets_of_links"]


def targets_of_links(store: Store | None, *, only_folders: bool = False) -> set[str]:
    """Return the names of the files and folders in a tier to which links in the tier lead.
    only_folders: without files, as a drain copies files in place of the links."""
    targets = set[str]()
    if not isinstance(store, LocalStore):
        return targets
    root = os.path.realpath(store.folder)
    stack = [root]
    while stack:
        with suppress(OSError), os.scandir(stack.pop()) as scan:
            for entry in scan:
                if entry.is_symlink():
                    target = os.path.realpath(entry.path)
                    is_wanted = not only_folders or os.path.isdir(target)  # noqa: PTH112 - a text
                    if is_wanted and target.startswith(f"{root}/"):
                        targets.add(target[len(root) + 1 :])
                elif entry.is_dir(follow_symlinks=False) and entry.name != STATE:
                    stack.append(entry.path)
    return targets


def is_linked(checkpoint: Checkpoint, targets: set[str]) -> bool:
    """Return True if a link's target is the checkpoint, or a file of the checkpoint."""
    if not targets:
        return False
    names = {file.name for file in checkpoint.files} | (
        {checkpoint.name} if checkpoint.is_folder else set()
    )
    return not names.isdisjoint(targets)


def is_link(checkpoint: Checkpoint) -> bool:
    """Return True if a checkpoint, other than a folder, is a link in the tier.  Removal of the link
    would free no room, and would end the protection of the link's target."""
    store = checkpoint.store
    if checkpoint.is_folder or not isinstance(store, LocalStore):
        return False
    return any(store.path(file.name).is_symlink() for file in checkpoint.files)
