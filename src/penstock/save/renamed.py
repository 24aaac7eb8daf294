"""Report why a copy on the slow tier has another name than the checkpoint on the fast tier."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.places.stores import Store
from penstock.save.checkpoint import SHORTENED, Checkpoint

__all__ = ["why_renamed"]


def why_renamed(
    one: Checkpoint, name: str, slow: Store, on_slow: Sequence[Checkpoint], own: Collection[str]
) -> str:
    """Return a sentence with the reason.  name: name of the copy; on_slow: the checkpoints on the
    slow tier before the copy; own: the fast tiers of this run."""
    start = f"{one.name} is {name} on {slow.url}: "
    files = {found.name for found in one.files}
    there = [
        copy for copy in on_slow
        if copy.name == one.name or not files.isdisjoint(found.name for found in copy.files)
    ]  # fmt: skip
    there.sort(key=lambda copy: copy.name != one.name)
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
        if one.doubt.endswith(SHORTENED):
            return f"{start}{one.doubt}; the longer copy stays"
        if copy.name != one.name:
            return f"{start}{copy.name} there has a file of that name"
    return f"{start}other files are there under that name"
