"""The folders of a burst buffer on a fast tier, and the names of the files that go there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from penstock.errors import TierError
from penstock.safe import drafts
from penstock.save.burst.file import FOLDER

__all__ = ["PATTERNS", "prepare"]

# Some files come from private folders.  0o711: a reader can follow a program's link to a file, but
# cannot list the names, and nobody can guess a name.
MODES = {"": 0o711, "data": 0o711, "home": 0o700, "draft": 0o700}


# Names of files from torch, safetensors, Lightning, Keras, TensorFlow, DeepSpeed and DCP, also
# while unfinished; and all files in the folders of trainers.
PATTERNS = (
    *("*.pt", "*.pt.*", "*.pth", "*.pth.*", "*.ckpt", "*.ckpt.*", "*.bin", "*.bin.*"),
    *("*.safetensors", "*.safetensors.*", ".tmp??????", "*.npz", "*.npz.*"),
    *("*.keras", "*.weights.h5", "*.distcp", "part-?????-of-?????"),
    *("*.data-?????-of-?????", "*.data-?????-of-?????.*"),
    *("checkpoint-*/", "tmp-checkpoint-*/", "global_step*/", "*.ckpt/"),
)


def prepare(fast: str | os.PathLike[str]) -> Path:
    """Make the folder for a recorded program's checkpoints on a tier, and return the folder.

    Raises TierError: the tier is missing, or cannot be written.
    """
    tier = Path(os.path.realpath(fast))
    if not tier.is_dir():
        raise TierError(f"{tier}: no such folder; make a folder on a fast disk: mkdir -p {tier}")
    folder = tier / FOLDER
    try:
        for name, mode in MODES.items():
            drafts.own_folder(folder / name, mode)
        with suppress(FileExistsError):
            drafts.create(folder / "data" / f".probe-{os.getpid()}").close()
        (folder / "data" / f".probe-{os.getpid()}").unlink()
    except OSError as error:
        raise TierError(
            f"{tier}: cannot be written: {error.strerror}; name a folder of your own"
        ) from error
    if len(os.fsencode(folder)) > 1000:
        raise TierError(f"{folder}: too long a name for a fast tier; choose a shorter one")
    return folder
