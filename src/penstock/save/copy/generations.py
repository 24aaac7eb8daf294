"""Replace a checkpoint of several files in a store that cannot rename a folder, such as S3.

    NAME.part/FILE                         each file of the newer save, as a separate object
    NAME.part/penstock-incomplete.json     the owner of the draft, until the end
    NAME.part/penstock-place.json          the future manifest: the newer save is whole from now on

The files of the older save stay until the newer save is complete below NAME.part.  Then each file
moves to its name, the extra files of the older save are removed, the manifest is replaced, and the
draft is removed.  The moves can be repeated after an interruption at any point.  For a checkpoint
folder, the manifest of the draft is penstock-place-folder.json.  Knows stores, names and manifests;
the caller decides when a copy is due.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from penstock.errors import SaveError
from penstock.places.stores import Store, beside
from penstock.save.checkpoint import HALF, INCOMPLETE, half_of, mark_of_half
from penstock.save.commit import PART_SUFFIX, PLACE, PLACE_FOLDER
from penstock.save.manifest import BESIDE, INSIDE, Manifest, parse

__all__ = ["begin_draft", "drop_draft", "end_drafts", "end_moves", "place_draft"]


def begin_draft(store: Store, name: str, called: str, origin: str, n_files: int) -> None:
    """Begin the draft of a newer save, or resume an earlier attempt.

    First end the moves of an earlier draft.  Raises TierError.
    """
    part = f"{name}{PART_SUFFIX}"
    for journal in (PLACE, PLACE_FOLDER):
        if store.stat(f"{part}/{journal}") is not None:
            with suppress(SaveError):  # damaged: the newer save replaces all of the files
                _moved(store, name, journal)
            store.delete(f"{part}/{journal}")
    store.put(f"{part}/{INCOMPLETE}", mark_of_half(called, origin, n_files))


def place_draft(
    store: Store, name: str, manifest: bytes, wanted: Collection[str], *, is_folder: bool
) -> None:
    """Put the files of a complete draft in their places.

    wanted: the names of the files; other files in the draft are from an earlier attempt.  Raises
    TierError, SaveError.
    """
    part = f"{name}{PART_SUFFIX}"
    for file in list(store.list(part)):
        if file.name[len(part) + 1 :] not in (*wanted, INCOMPLETE):
            store.delete(file.name)
    journal = PLACE_FOLDER if is_folder else PLACE
    store.put(f"{part}/{journal}", manifest)
    _moved(store, name, journal)


def end_moves(store: Store) -> None:
    """End the moves of a killed drain.  Raises TierError."""
    for file in list(store.list()):
        folder, _, base = file.name.rpartition("/")
        name = folder.removesuffix(PART_SUFFIX)
        if base in (PLACE, PLACE_FOLDER) and name != folder:
            with suppress(SaveError):  # damaged: the draft stays, and does not count
                _moved(store, name, base)


def end_drafts(store: Store, origins: Collection[str], waiting: Collection[str]) -> None:
    """Remove the drafts from the given fast tiers if no later drain will complete the drafts.

    waiting: names of the checkpoints still to be copied.  Raises TierError.
    """
    names = [file.name for file in store.list()]
    placing = {name.rpartition("/")[0] for name in names if name.endswith((PLACE, PLACE_FOLDER))}
    for name in names:
        folder, _, base = name.rpartition("/")
        if base == INCOMPLETE and folder.endswith(PART_SUFFIX) and folder not in placing:
            called, origin = half_of(store, name)
            if origin in origins and called not in waiting:
                drop_draft(store, folder.removesuffix(PART_SUFFIX))


def drop_draft(store: Store, name: str) -> None:
    """Remove a draft, the mark last.  Raises TierError."""
    part = f"{name}{PART_SUFFIX}"
    names = [file.name for file in store.list(part)]
    for path in sorted(names, key=lambda path: path.endswith(f"/{INCOMPLETE}")):
        store.delete(path)


def _moved(store: Store, name: str, journal: str) -> None:
    """Move the files of a complete draft to their names, and remove the draft.

    Raises TierError; SaveError: the future manifest is damaged.
    """
    part = f"{name}{PART_SUFFIX}"
    noted = f"{part}/{journal}"
    data = store.read(noted)
    manifest = parse(data, store.where(noted))
    is_folder = journal == PLACE_FOLDER
    start = f"{name}/" if is_folder else name[: name.rfind("/") + 1]
    there = {stored.name for stored in store.list(part)}
    for file in manifest.files:
        if f"{part}/{file.name}" in there:
            store.move(f"{part}/{file.name}", f"{start}{file.name}")
    place = f"{name}/{INSIDE}" if is_folder else beside(name, BESIDE)
    _remove_older(store, start, place, manifest)
    for file in manifest.files if not is_folder else ():  # marks of earlier single files
        for ending in (BESIDE, HALF):
            mark = beside(f"{start}{file.name}", ending)
            if mark != place and store.stat(mark) is not None:
                store.delete(mark)
    store.put(place, data)
    store.delete(noted)
    drop_draft(store, name)


def _remove_older(store: Store, start: str, place: str, manifest: Manifest) -> None:
    """Remove the files that belong only to the older save.  Raises TierError."""
    if store.stat(place) is None:
        return
    try:
        older = parse(store.read(place), place)
    except SaveError:
        return
    kept = {file.name for file in manifest.files}
    for file in older.files:
        name = f"{start}{file.name}"
        if file.name not in kept and store.stat(beside(name, BESIDE)) is None:
            store.delete(name)
