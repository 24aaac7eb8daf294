"""Report why a copy on the slow tier has another name than the checkpoint on the fast tier."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.places.stores import Store
from penstock.save.checkpoint import SHORTENED, Checkpoint
from penstock.save.copy.target import was_written_before

__all__ = ["why_renamed"]


def why_renamed(
    checkpoint: Checkpoint,
    name: str,
    slow: Store,
    on_slow: Sequence[Checkpoint],
    own: Collection[str],
) -> str:
    """Return a sentence with the reason.  name: name of the copy; on_slow: the checkpoints on the
    slow tier before the copy; own: the fast tiers of this run."""
    start = f"{checkpoint.name} is {name} on {slow.url}: "
    files = {file.name for file in checkpoint.files}
    there = [
        copy for copy in on_slow
        if copy.name == checkpoint.name or not files.isdisjoint(file.name for file in copy.files)
    ]  # fmt: skip
    there.sort(key=lambda copy: copy.name != checkpoint.name)
    for copy in there:
        if copy.problem:
            return f"{start}the copy there cannot be trusted: {copy.problem}"
        if copy.manifest is None:
            return (
                f"{start}files of that name are there, without a manifest and with other contents"
            )
        if copy.manifest.origin not in ("", *own):
            return (
                f"{start}another run has the name there; `penstock save recover FAST SLOW` before "
                "the first save goes on with that run"
            )
        if checkpoint.doubt.endswith(SHORTENED):
            return f"{start}{checkpoint.doubt}; the longer copy stays"
        if was_written_before(checkpoint, copy.manifest):
            return f"{start}{checkpoint.name} is older than the copy there, which stays"
        if copy.name != checkpoint.name:
            return f"{start}{copy.name} there has a file of that name"
    return f"{start}other files are there under that name"
