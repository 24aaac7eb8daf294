"""Copy a save from the slow tier to an empty fast tier, with the files that the training reads:
other parts of the save, states that all steps share, descriptions, pointers."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import SaveError, TierError
from penstock.places.stores import LocalStore, StoredFile
from penstock.save.checkpoint import Checkpoint, origin_of
from penstock.save.commit import claim
from penstock.save.copy.copying import DrainPace, Trip, copy_file
from penstock.save.drain.besides import HINT_BYTES, copied_from
from penstock.save.drain.recover import fetch
from penstock.save.drain.retention import remove
from penstock.save.find.formats import find
from penstock.save.find.together import other_parts
from penstock.save.find.tree import HINTS
from penstock.save.find.unfetched import FETCH, UNFETCHED, begin_fetch, end_fetch, marks_of
from penstock.save.find.usual import of_equal_number, of_other_saves, usual_files
from penstock.save.unit.folders import place_of
from penstock.save.unit.shared import (
    not_of_this_save,
    of_earlier_save,
    of_two_saves_by_state,
    shared_states,
)

__all__ = ["FetchedSave", "fetch_save", "save_of"]

MOST_BESIDE, MOST_BESIDE_BYTES = 1000, 1 << 30  # files beside a checkpoint: of all together


@dataclass(frozen=True, slots=True)
class FetchedSave:
    """path: of the copy.  beside: names of the other copies.  left: a sentence for each file near
    the checkpoint that was not copied, or that may be of another save."""

    path: Path
    beside: list[str]
    left: list[str]


def save_of(checkpoint: Checkpoint) -> list[Checkpoint]:
    """Return a checkpoint and the other parts of the save, in other folders or under other names.
    Raises TierError."""
    return [checkpoint, *other_parts(checkpoint, find(checkpoint.store))]


def fetch_save(checkpoint: Checkpoint, fast: str | os.PathLike[str]) -> FetchedSave:
    """Copy a checkpoint with the files that the training reads beside.  A file on the fast tier is
    replaced only by a newer one of the save, if the slow tier has a copy of the file.  Until all is
    copied, and after an error or a kill, no part counts.

    Raises TierError, also where another process is fetching; SaveError: a part is damaged, or a
    shared state is of an earlier save.
    """
    try:
        held = claim(fast, FETCH)
    except SaveError as error:  # no fault of the checkpoint
        raise TierError(str(error)) from error
    with held:
        return _Fetch(checkpoint, LocalStore(fast)).run()


class _Fetch:
    """The copies of a save.  left: a sentence for each file near the checkpoint that was not
    copied, or that may be of another save."""

    def __init__(self, checkpoint: Checkpoint, fast: LocalStore) -> None:
        self._hints, self._rest = list[StoredFile](), list[StoredFile]()
        self._one, self._fast, self._left = checkpoint, fast, list[str]()
        self._found = find(checkpoint.store, hints=self._hints, rest=self._rest)
        self._there = {there.name: there for there in find(fast)}
        self._shared = list[Checkpoint]()

    def run(self) -> FetchedSave:
        checkpoint, fast = self._one, self._fast
        if said := of_two_saves_by_state(checkpoint, self._found):
            raise SaveError(said)
        parts = other_parts(checkpoint, self._found)
        self._choose_shared(parts)
        self._name_equal(parts)
        for other in (checkpoint, *parts, *self._shared):
            self._make_way(other)
        names = {other.name for other in (checkpoint, *parts, *self._shared)} - self._there.keys()
        begin_fetch(fast, origin_of(checkpoint.store), names)
        beside = [other.name for other in parts]
        try:
            for other in parts:
                try:
                    fetch(other, fast.folder)
                except SaveError as error:
                    if not self._may_be_another(other):
                        raise SaveError(f"{other.name}, a part of this save: {error}") from error
                    beside.remove(other.name)
                    self._left.append(f"{error}; not copied")
            for other in self._shared:
                try:
                    fetch(other, fast.folder)
                except SaveError as error:
                    self._left.append(f"{error}; not copied")
                else:
                    beside.append(other.name)
            path = fetch(checkpoint, fast.folder)  # last: the parts of the save are there
            copied, named = _fetch_beside([checkpoint, *parts], self._beside(), fast)
        except (SaveError, TierError):
            _delete_new(fast, self._there)
            end_fetch(fast)
            raise
        end_fetch(fast)
        return FetchedSave(path, beside + copied, self._left + named)

    def _may_be_another(self, other: Checkpoint) -> bool:
        """Return True if the folders of a part are called by no words of one training: it may be a
        training of its own."""
        families = [
            place_of(part.called or part.name, part.is_folder)[0] for part in (self._one, other)
        ]
        return self._one.step is not None and families[0] != families[1]

    def _beside(self) -> list[tuple[StoredFile, bool]]:
        """Return the files of no checkpoint without those of other saves, each with True if the
        file was written with this save, as with other saves."""
        usual = set(usual_files(self._one, self._found, self._rest))
        strange = of_other_saves(self._one, self._found, self._rest)
        return [(file, False) for file in self._hints] + [
            (file, file in usual) for file in self._rest if file.name not in strange
        ]

    def _name_equal(self, parts: Sequence[Checkpoint]) -> None:
        """Name the checkpoints that may be parts of the save, but no other save shows it."""
        names = {other.name for other in (self._one, *parts, *self._shared)}
        equal = {other.name for other in of_equal_number(self._one, self._found)}
        self._left += [
            f"{other.where}: of an equal step; not copied"
            for other in self._found
            if (other.step == self._one.step is not None or other.name in equal)
            and other.name not in names and not other.problem
            and (other.called or other.name) != (self._one.called or self._one.name)
        ]  # fmt: skip

    def _choose_shared(self, parts: Sequence[Checkpoint]) -> None:
        """Choose the states without a step to copy."""
        for other in shared_states(self._one, self._found):
            if other in parts:
                continue
            if said := not_of_this_save(other, self._one, self._found):
                if other.name not in self._there:
                    self._left.append(f"{other.where}: {said}; not copied")
                continue
            said, near = of_earlier_save(other, self._one, self._found)
            if said:
                hint = f": if the training reads both, begin from {near}"
                self._left.append(f"{other.where}: {said}{hint}")
            self._shared.append(other)

    def _make_way(self, other: Checkpoint) -> None:
        """Remove a checkpoint of another save from the fast tier, if the name is needed and the
        slow tier has a copy.  Raises TierError; SaveError: the slow tier has no copy."""
        mine = self._there.get(other.name)
        if mine is None or marks_of(mine) & marks_of(other):
            if mine is not None and other in self._shared:
                self._shared.remove(other)  # the same save
            return
        copy = next(
            (checkpoint for checkpoint in self._found if marks_of(mine) & marks_of(checkpoint)),
            None,
        )
        if copy is None or mine.mtime_ns > other.mtime_ns or not remove(mine):
            raise SaveError(f"{mine.where} is of another save than {other.where}, and is kept")
        del self._there[other.name]
        self._left.append(f"{mine.where}: replaced by {other.where}; now it is {copy.where}")


def _delete_new(store: LocalStore, before: Container[str]) -> None:
    """Remove the checkpoints that the fast tier did not have before: a lone part would count as a
    checkpoint.  Raises TierError."""
    for copied in find(store):
        is_half = copied.problem and copied.problem != UNFETCHED  # a retry goes on
        if copied.name not in before and not is_half:
            for name in (copied.manifest_name, *(file.name for file in copied.files)):
                with suppress(TierError):
                    store.delete(name)


# --- files of no checkpoint -----------------------------------------------------------------------


def _fetch_beside(
    save: Sequence[Checkpoint], beside_it: Iterable[tuple[StoredFile, bool]], fast: LocalStore
) -> tuple[list[str], list[str]]:
    """Copy the files of no checkpoint in the folders above the parts of a save, and those written
    with the save, if they came from the same fast tier.  Return the copied names, and a sentence
    for each file that was not copied.  Raises TierError.

    beside_it: files of no checkpoint; True: written with the save."""
    store, folders = save[0].store, {""}
    for part in save:
        above = part.name.rpartition("/")[0]
        while above:
            folders.add(above)
            above = above.rpartition("/")[0]
    origins = {part.manifest.origin for part in save if part.manifest is not None} | {""}
    came_from = copied_from(store)
    near = [
        file for file, is_of_save in beside_it
        if (is_of_save or file.name.rpartition("/")[0] in folders)
        and came_from.get(file.name, "" if _is_pointer(file) else None) in origins
        and fast.stat(file.name) is None
    ]  # fmt: skip
    copied, left, n_bytes = list[str](), list[str](), 0
    for place, file in enumerate(sorted(near, key=lambda file: (file.size_bytes, file.name))):
        n_bytes += file.size_bytes
        if place >= MOST_BESIDE or file.size_bytes > HINT_BYTES or n_bytes > MOST_BESIDE_BYTES:
            others = f" and {len(near) - place - 1} larger files" if place < len(near) - 1 else ""
            left.append(f"{store.where(file.name)}{others}: no part of a checkpoint; not copied")
            break
        if _is_pointer(file) and not _is_named(save, file.name, store.read(file.name)):
            left.append(f"{store.where(file.name)}: names another checkpoint; not copied")
            continue
        source = Checkpoint(store, file.name, "files", False, (file,), None)
        copy_file(source, file, fast, file.name, Trip(DrainPace(None), 4))
        copied.append(file.name)
    return copied, left


def _is_pointer(file: StoredFile) -> bool:
    return file.name.rpartition("/")[2] in HINTS


def _is_named(save: Sequence[Checkpoint], pointer: str, content: bytes) -> bool:
    """Return True if the first line of a pointer names a part of a save, by a name below the
    pointer's folder, or by the step as the last number."""
    line = content.partition(b"\n")[0]
    folder, slash, _ = pointer.rpartition("/")
    below = [part for part in save if part.name.startswith(folder + slash)]
    names = {
        part for checkpoint in below for part in checkpoint.name[len(folder + slash) :].split("/")
    }
    names |= {name.rpartition(".")[0] for name in names}
    patterns = (re.escape(os.fsencode(name)) for name in names if any(map(str.isdigit, name)))
    if any(re.search(rb"(?<![0-9A-Za-z])%b(?![0-9A-Za-z])" % name, line) for name in patterns):
        return True
    numbers = re.findall(rb"\d+", line)
    return bool(numbers) and int(numbers[-1][:18]) in {checkpoint.step for checkpoint in below}
