"""Doubt a checkpoint in a folder that programs use while they write: `tmp_ck/`, `staging/`.

The program renames or moves the content when all is written, and what is left there after a kill is
a part of a save.  But a program may also keep its checkpoints below a folder `tmp`.  Such a
checkpoint is copied and named, and is never called checked while there are others.  Knows names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.save.checkpoint import OF_FILES, Checkpoint
from penstock.save.unit.units import BY_RULE

__all__ = ["with_scratch_folders"]

# A word of the name; not `temp_0.7`, a temperature.
_WORD = re.compile(r"(?:^|[._-])(?:tmp|temp(?![._-]?\d)|temporary|staging)(?=[._-]|$)")
_NAME = re.compile(r"[._-]*(?:incoming|pending|partial|saving|writing|new|next|wip)")


def with_scratch_folders(
    checkpoints: Sequence[Checkpoint], others: Sequence[Checkpoint]
) -> dict[int, str]:
    """Return doubts by id of checkpoint.  others: checkpoints of another tier.

    A checkpoint with a step is not doubted if all checkpoints lie in such folders."""
    is_outside = any(not _scratch_of(checkpoint) for checkpoint in (*checkpoints, *others))
    return {
        id(checkpoint): f"programs write in a folder named {folder} before they rename it"
        for checkpoint in checkpoints
        if (folder := _scratch_of(checkpoint))
        and (checkpoint.step is None or is_outside)
        and BY_RULE not in checkpoint.why
        and (checkpoint.manifest is None or checkpoint.manifest.source.startswith(OF_FILES))
    }


def _scratch_of(checkpoint: Checkpoint) -> str:
    """Return the name of the folder of a checkpoint, or of the folder around it, if programs use
    folders of this name while they write; else empty."""
    folders = (checkpoint.name if checkpoint.is_folder else checkpoint.folder.rstrip("/")).split(
        "/"
    )
    for name in folders[-2:]:
        if _WORD.search(name.lower()) or _NAME.fullmatch(name.lower()):
            return name
    return ""
