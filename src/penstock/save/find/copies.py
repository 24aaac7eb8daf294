"""Compare a checkpoint with the copy of the same name on another tier.

The module knows names, times and the sums of manifests, and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.places.stores import LocalStore, StoredFile
from penstock.save.checkpoint import ONE_OR_TWO
from penstock.save.find.contents import has_content
from penstock.save.unit.divided import without_resharded
from penstock.save.unit.names import are_parts, is_state, parts_of
from penstock.save.unit.progress import begun_again, written_over
from penstock.save.unit.units import BY_RULE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.save.checkpoint import Checkpoint

__all__ = ["is_all_there", "marks_there", "may_be_of_two_saves", "of_others", "unlike_its_copy"]


def unlike_its_copy(checkpoint: Checkpoint, copy: Checkpoint) -> str:
    """Compare a checkpoint with the copy of the same name.  Return the problem, or an empty
    string."""
    is_by_rule = checkpoint.why.startswith(BY_RULE)
    own = dict(zip(checkpoint.inner_names, checkpoint.files, strict=True))
    manifest = copy.manifest
    assert manifest is not None
    sums = manifest.by_saved_name
    lost = without_resharded(
        sorted(name for name in are_parts(sums) - own.keys() if not parts_of(name).is_history),
        {name: made.size_bytes for name, made in sums.items()},
        {name: file.size_bytes for name, file in own.items()},
    )
    # Without `saved`, the files of a copy NAME.2 have other names, unless the copy is a folder.
    is_renamed = bool(copy.called) and not copy.is_folder and not manifest.saved
    if lost and copy.is_folder == checkpoint.is_folder and not is_renamed and not is_by_rule:
        if (
            parts_of(lost[0]).is_state_text
            and checkpoint.store.stat(checkpoint.folder + lost[0]) is not None
        ):
            return f"{lost[0]} was written a minute after the rest, and its copy with the rest"
        return f"no {lost[0]}, which its copy on {copy.store.url} has"
    there = _as_saved(copy)
    return written_over(
        own, there, lambda name: has_content(checkpoint.store, own[name], sums[name]), is_by_rule
    )


def may_be_of_two_saves(checkpoint: Checkpoint, copy: Checkpoint) -> str:
    """Return why a checkpoint that was written since the copy may be of two saves: after a pause
    the files begin in the order of the copy again, however long the pauses of the copied save.
    Empty: no evidence."""
    own = dict(zip(checkpoint.inner_names, checkpoint.files, strict=True))
    before = _as_saved(copy)
    names = [name for name in own.keys() & before.keys() if is_state(name.rpartition("/")[2])]
    began = begun_again(
        {name: (own[name].size_bytes, own[name].mtime_ns or 0) for name in names},
        {name: before[name].mtime_ns or 0 for name in names},
        slower=0,
    )
    if began is None:
        return ""
    first, again = began
    idle_s = ((own[again].mtime_ns or 0) - (own[first].mtime_ns or 0)) / 1e9
    return f"{again} was written {idle_s:,.0f} s after {first}: {ONE_OR_TWO}"


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
        name: file for file in copy.files
        if (name := copy.inner(file)) in copy.manifest.by_saved_name
    }  # fmt: skip


def is_all_there(copy: Checkpoint) -> bool:
    """Return True if each file in the manifest of a copy is present, with the right size."""
    if copy.manifest is None:
        return True
    sizes = dict(zip(copy.inner_names, (file.size_bytes for file in copy.files), strict=True))
    return all(sizes.get(file.name) == file.size_bytes for file in copy.manifest.files)


def _is_as_copied(copy: Checkpoint) -> bool:
    """Return False if a file of a copy was changed after the copy: a changed copy does not show the
    original's sizes and times."""
    assert copy.manifest is not None
    sizes = {file.name: file.size_bytes for file in copy.manifest.files}
    until_ns = copy.manifest.verified_unix_ns
    return all(
        sizes.get(copy.inner(file), file.size_bytes) == file.size_bytes
        and not 0 < until_ns < (file.mtime_ns or 0)
        for file in copy.files
    )


def marks_there(on_slow: Iterable[Checkpoint]) -> set[str]:
    """Return the identities of the copies on the slow tier, and of the sources of the copies."""
    return {
        mark
        for copy in on_slow
        if copy.manifest is not None and not copy.problem and is_all_there(copy)
        for mark in (copy.manifest.source, copy.manifest.identity)
    }


def of_others(on_fast: Iterable[Checkpoint], on_slow: Iterable[Checkpoint]) -> set[str]:
    """Return the identities of the checkpoints that were copied to the fast tier from another
    program's checkpoints on the slow tier, and are unchanged on the slow tier."""
    theirs = {(copy.name, copy.identity) for copy in on_slow if not copy.is_ours}
    return {
        save.identity
        for save in on_fast
        if (made := save.manifest) is not None and (made.called or save.name, made.source) in theirs
    }
