"""Compare a checkpoint with the copy of the same name on another tier.

The module knows names, times and the sums of manifests, and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.places.stores import LocalStore, StoredFile
from penstock.save.contents import has_content
from penstock.save.divided import without_resharded
from penstock.save.names import are_parts, parts_of
from penstock.save.progress import written_over
from penstock.save.units import BY_RULE

if TYPE_CHECKING:
    from penstock.save.checkpoint import Checkpoint

__all__ = ["is_all_there", "unlike_its_copy"]


def unlike_its_copy(one: Checkpoint, copy: Checkpoint) -> str:
    """Compare a checkpoint with the copy of the same name.  Return the problem, or an empty
    string."""
    is_by_rule = one.why.startswith(BY_RULE)
    own = {one.inner(found): found for found in one.files}
    manifest = copy.manifest
    assert manifest is not None
    sums = manifest.by_saved_name
    lost = without_resharded(
        sorted(one for one in are_parts(sums) - own.keys() if not parts_of(one).is_history),
        {name: made.size_bytes for name, made in sums.items()},
        {name: found.size_bytes for name, found in own.items()},
    )
    # Without `saved`, the files of a copy NAME.2 have other names, unless the copy is a folder.
    is_renamed = bool(copy.called) and not copy.is_folder and not manifest.saved
    if lost and copy.is_folder == one.is_folder and not is_renamed and not is_by_rule:
        if parts_of(lost[0]).is_state_text and one.store.stat(one.folder + lost[0]) is not None:
            return f"{lost[0]} was written a minute after the rest, and its copy with the rest"
        return f"no {lost[0]}, which its copy on {copy.store.url} has"
    there = _as_saved(copy)
    return written_over(
        own, there, lambda name: has_content(one.store, own[name], sums[name]), is_by_rule
    )


def _as_saved(copy: Checkpoint) -> dict[str, StoredFile]:
    """Return the source's files at the time of the copy, by name.  Empty: not known."""
    assert copy.manifest is not None
    if copy.manifest.saved:
        return {
            name: StoredFile(name, file.size_bytes, mtime_ns)
            for (name, mtime_ns), file in zip(copy.manifest.saved, copy.manifest.files, strict=True)
        }
    if not isinstance(copy.store, LocalStore) or not _is_as_copied(copy):
        return {}
    return {
        name: found for found in copy.files
        if (name := copy.inner(found)) in copy.manifest.by_saved_name
    }  # fmt: skip


def is_all_there(copy: Checkpoint) -> bool:
    """Return True if each file in the manifest of a copy is present, with the right size."""
    if copy.manifest is None:
        return True
    sizes = {copy.inner(found): found.size_bytes for found in copy.files}
    return all(sizes.get(file.name) == file.size_bytes for file in copy.manifest.files)


def _is_as_copied(copy: Checkpoint) -> bool:
    """Return False if a file of a copy was changed after the copy: a changed copy does not show the
    original's sizes and times."""
    assert copy.manifest is not None
    sizes = {file.name: file.size_bytes for file in copy.manifest.files}
    until_ns = copy.manifest.verified_unix_ns
    return all(
        sizes.get(copy.inner(found), found.size_bytes) == found.size_bytes
        and not 0 < until_ns < (found.mtime_ns or 0)
        for found in copy.files
    )
