"""Choose the destination of a copy of a checkpoint: the name on the tier, the place until the copy
counts, and the replacement of an older copy.

    NAME.part/                          the files, until all are durable
    NAME.part/penstock-place.json       the future manifest: from here on the newer copy is whole
    NAME.part/penstock-waits.json       the future manifest of a copy that counts together with the
                                        copies of the other parts of the save
    .penstock/placing.json              the copies of a save under way to the final places

The module knows stores, names and manifests, and not when a copy is due.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from penstock.errors import SaveError, TierError
from penstock.places.stores import LocalStore, Store, beside, draft_of, fsync_folder
from penstock.save.checkpoint import (
    HALF,
    INCOMPLETE,
    SHORTENED,
    Checkpoint,
    half_of,
    is_of_one_file,
    is_overtaken,
    mark_of_half,
    origin_of,
    origins,
    own_and_others,
    parts_of_half,
)
from penstock.save.commit import (
    MARK,
    PART_SUFFIX,
    PLACE,
    STATE,
    WAITS,
    discard,
    exchange,
    is_alive,
    is_strange,
    make_part,
)
from penstock.save.copy.generations import begin_draft, drop_draft, place_draft
from penstock.save.kept import kept_json
from penstock.save.manifest import BESIDE, INSIDE, Manifest, parse
from penstock.save.unit.names import PACKED
from penstock.save.unit.progress import FROZEN_S

__all__ = ["CopyTarget", "end_placing", "end_together", "place_together", "was_written_before"]

PLACING_TOGETHER = f"{STATE}/placing.json"
MOST_RECORD_BYTES = 1 << 20


class CopyTarget:
    """Destination of a copy.  prefix: text before the names of the files, until the commit."""

    def __init__(self, source: Checkpoint, dest: Store, *, waits: bool = False) -> None:
        """Choose the name of the copy.  waits: the copy counts together with the copies of the
        other parts of the save."""
        self.store, self.is_folder, self.waits = dest, source.is_folder, waits
        self._source = source
        self.older: Manifest | None = None  # of the replaced copy
        stem, suffix = source.name, ""
        has_ending = source.kind != "tensorflow" and "." in source.name.rpartition("/")[2]
        if not self.is_folder and has_ending:
            stem, suffix = _split(source.name)  # last.2.ckpt keeps the ending
        self.name, again = source.name, 1
        while not self._may_have(self.name):
            again += 1
            self.name = f"{stem}.{again}{suffix}"
        self.place = self.name
        # The older save under this name stays until the newer save is complete.
        has_several = self.is_folder or len(source.files) > 1
        self.is_drafted = not isinstance(dest, LocalStore) and (
            waits or (has_several and dest.stat(self._manifest_name(self.name)) is not None)
        )
        # A copy with a new name keeps the name of the save in `called`.
        self.called = source.called or (source.name if self.name != source.name else "")
        if not self.is_inside:
            self.prefix = source.folder
            return
        if dest.can_rename or self.is_drafted:
            self.place = f"{self.name}{PART_SUFFIX}"
        self.prefix = f"{self.place}/"

    @property
    def is_inside(self) -> bool:
        """Return True if the files are in a separate folder until the commit.  Several files beside
        other checkpoints move into place when all files are durable."""
        has_several = not self.is_folder and len(self._source.files) > 1
        has_draft = isinstance(self.store, LocalStore) or self.is_drafted
        return self.is_folder or self.waits or (has_several and has_draft)

    def inner(self, name: str) -> str:
        """Return the name of a file in the copy, from the name in the source."""
        return name if self.is_folder else self._renamed(name, self.name)

    def _renamed(self, inner: str, name: str) -> str:
        """Return the name of a file for a checkpoint called `name`: NAME.2 adds .2 to each file."""
        old, new = (path.rpartition("/")[2] for path in (self._source.name, name))
        if old == new:
            return inner
        if self._source.kind == "tensorflow" or len(self._source.files) == 1:
            return new + inner[len(old) :]
        again = new.removesuffix(_split(old)[1]).rpartition(".")[2]
        stem, suffix = _split(inner)
        return f"{stem}.{again}{suffix}"

    def _manifest_name(self, name: str) -> str:
        return replace(self._source, name=name).manifest_name

    def _may_have(self, name: str) -> bool:
        """Return True if the name is free, or is the name of a copy that may be replaced.  Raises
        TierError: another process is writing under the name."""
        if isinstance(self.store, LocalStore) and self.is_inside:
            part = self.store.path(f"{name}{PART_SUFFIX}")
            if is_alive(part):
                raise TierError(f"{part}: is being written by another process; next time")
            try:
                if is_strange(part):
                    return False
            except OSError as error:
                if is_of_one_file(error):
                    return False
                raise
        if name != self._source.name and self._is_taken(self._source.store, name):
            return False  # two checkpoints of a tier would replace each other forever
        noted = self._manifest_name(name)
        try:
            if self.store.stat(noted) is not None:
                there = parse(self.store.read(noted), noted)
                is_theirs = is_overtaken(there, self.store, name, self.is_folder)
                is_alone = not self.is_folder or self._is_alone(there, name)
                self.older = there
                return self._is_older(there) and not is_theirs and is_alone
        except SaveError:  # the manifest is not valid: the owner is not known
            return False
        except TierError as error:
            if is_of_one_file(error):  # the error may be permanent
                return False
            raise
        if not self.is_folder:
            return not self._is_taken(self.store, name) or self._is_half(name)
        if isinstance(self.store, LocalStore):
            return not self.store.path(name).exists()
        return self.store.stat(f"{name}/{INCOMPLETE}") is not None or not any(self.store.list(name))

    def _is_taken(self, store: Store, name: str) -> bool:
        if self.is_folder:
            return any(store.list(name))
        names = (self._renamed(self._source.inner(file), name) for file in self._source.files)
        return any(store.stat(f"{self._source.folder}{word}") for word in names)

    def _is_older(self, there: Manifest) -> bool:
        """Return True for a copy of this checkpoint, or of an older checkpoint of this name and
        tier."""
        if self._is_copy(there):
            return True
        if self._source.doubt.endswith(SHORTENED) and not there.doubt.endswith(SHORTENED):
            return False  # a file that may be cut replaces no longer copy: both stay
        is_own = bool(there.source) and there.origin in ("", *origins(self._source.store))
        return is_own and not was_written_before(self._source, there)

    def _is_copy(self, there: Manifest) -> bool:
        mine = self._source.manifest
        sources = {self._source.identity, mine.source if mine is not None else ""} - {""}
        return there.identity in sources or there.source in sources

    def _is_alone(self, there: Manifest, name: str) -> bool:
        """Return True if the folder contains no other checkpoint.  A Trainer's model folder may
        contain checkpoints, which a replacement would remove."""
        own_names = (file.name for file in there.files)
        return not own_and_others(self.store, name, there.kind, own_names)[1]

    def _is_half(self, name: str) -> bool:
        """Return True if files without a manifest are an interrupted copy of this checkpoint, or of
        an older checkpoint with this name from the same tier."""
        mark = beside(name, HALF)
        if self.store.stat(mark) is None:
            return False
        try:
            called, origin = half_of(self.store, mark)
        except TierError as error:
            if is_of_one_file(error):  # the error may be permanent
                return False
            raise
        wanted = self._source.called or self._source.name
        return called == wanted and origin in ("", *origins(self._source.store))

    def begin(self) -> None:
        if not self.is_inside:
            self._mark_as_half()
        elif isinstance(self.store, LocalStore):
            part = self.store.path(self.place)
            if not part.exists():  # else resume the files of an earlier attempt
                make_part(part, self.store.folder).close()
        elif self.is_drafted:
            n_files, called = len(self._source.files), self.called or self.name
            begin_draft(self.store, self.name, called, origin_of(self._source.store), n_files)
        else:
            self.store.put(f"{self.place}/{INCOMPLETE}", b"{}")

    def _mark_as_half(self) -> None:
        """Mark the owner before the first file has a final name, until the manifest is written.
        First remove the files of another save from an earlier attempt."""
        mark, names = beside(self.name, HALF), list[str]()
        identity = self._source.identity
        if len(self._source.files) > 1:
            inner = (self.inner(self._source.inner(file)) for file in self._source.files)
            names = [f"{self.prefix}{inner_name}" for inner_name in inner]
            if self.store.stat(mark) is not None and parts_of_half(self.store, mark)[0] != identity:
                for name in names:
                    self.store.delete(name)
        origin, called = origin_of(self._source.store), self.called or self.name
        self.store.put(mark, mark_of_half(called, origin, len(self._source.files), identity, names))

    def arrived(self) -> None:
        """Delete the manifest of the replaced files, once the new files have replaced the old.
        Until then the old manifest shows damage."""
        if not self.is_inside and self.store.stat(self._manifest_name(self.name)) is not None:
            self.store.delete(self._manifest_name(self.name))

    def abandon(self) -> None:
        """Remove an unfinished copy.  Raises TierError."""
        if self.is_inside and isinstance(self.store, LocalStore):
            discard(self.store.path(self.place), self.store.folder)
            return
        if self.is_drafted:
            drop_draft(self.store, self.name)
            return
        # With a single file and the manifest still present, no byte of the older copy was replaced.
        manifest = self._manifest_name(self.name)
        is_single = not self.is_folder and len(self._source.files) == 1
        is_before = is_single and self.store.stat(manifest) is not None
        for file in self._source.files:
            name = self.prefix + self.inner(self._source.inner(file))
            if isinstance(self.store, LocalStore):
                draft = draft_of(self.store.path(name))
                self.store.delete(os.fspath(draft.relative_to(self.store.folder)))
            if not is_before:
                self.store.delete(name)
        if not is_before:
            self.arrived()
        self.store.delete(
            f"{self.place}/{INCOMPLETE}" if self.is_folder else beside(self.name, HALF)
        )

    def commit(self, manifest: bytes) -> None:
        """Make the copy count; a copy that waits counts after place_together()."""
        if self.waits:
            self._keep_waiting(manifest)
        elif not self.is_inside:
            self.store.put(self._manifest_name(self.name), manifest)
            self.store.delete(beside(self.name, HALF))
        elif self.is_drafted:
            wanted = {self.inner(self._source.inner(file)) for file in self._source.files}
            place_draft(self.store, self.name, manifest, wanted, is_folder=self.is_folder)
        elif not self.is_folder:
            assert isinstance(self.store, LocalStore)
            self._drop_strangers(self.store.path(self.place))
            self.store.put(f"{self.place}/{PLACE}", manifest)
            place(self.store, self.name)
        elif isinstance(self.store, LocalStore):
            self._commit_locally(self.store, manifest)
        else:
            self.store.put(f"{self.place}/{INSIDE}", manifest)
            self.store.delete(f"{self.place}/{INCOMPLETE}")

    def _keep_waiting(self, manifest: bytes) -> None:
        """Complete the draft of a copy that counts together with other copies."""
        if isinstance(self.store, LocalStore):
            part = self.store.path(self.place)
            self._drop_strangers(part)
            if self.is_folder:
                self.store.put(f"{self.place}/{INSIDE}", manifest)
            self.store.put(f"{self.place}/{WAITS}", manifest)
            try:
                for folder, _, _ in os.walk(part):
                    fsync_folder(folder)
            except OSError as error:
                raise TierError(f"{part}: cannot be synced: {error.strerror}") from error
        else:
            wanted = {self.inner(self._source.inner(file)) for file in self._source.files}
            for file in list(self.store.list(self.place)):
                if file.name[len(self.place) + 1 :] not in (*wanted, INCOMPLETE):
                    self.store.delete(file.name)
            self.store.put(f"{self.place}/{WAITS}", manifest)

    def _commit_locally(self, store: LocalStore, manifest: bytes) -> None:
        part = store.path(self.place)
        self._drop_strangers(part)
        store.put(f"{self.place}/{INSIDE}", manifest)
        try:
            (part / MARK).unlink(missing_ok=True)
            for folder, _, _ in os.walk(part):
                fsync_folder(folder)
        except OSError as error:
            raise TierError(f"{part}: cannot be committed: {error.strerror}") from error
        place_folder(store, self.name)

    def _drop_strangers(self, part: Path) -> None:
        """Remove files of an earlier attempt with another version of this checkpoint."""
        wanted = {self.inner(self._source.inner(file)) for file in self._source.files}
        wanted |= {MARK, INSIDE}
        for folder, _, names in os.walk(part):
            start = f"{folder}/"[len(os.fspath(part)) + 1 :]
            for name in names:
                if f"{start}{name}" not in wanted:
                    Path(folder, name).unlink()


# Endings kept whole: Keras loads no weights without Keras's own ending.
_LONG_ENDINGS = (".weights.h5", ".pth.tar", ".pt.tar", *PACKED)


def _split(name: str) -> tuple[str, str]:
    """Split a file's name into the stem and the ending, with the dot; no ending: an empty text."""
    low = name.lower()
    length = next((len(ending) for ending in _LONG_ENDINGS if low.endswith(ending)), 0)
    length = length or len(name) - name.rfind(".") if "." in name.rpartition("/")[2] else 0
    return name[: len(name) - length], name[len(name) - length :]


def was_written_before(source: Checkpoint, there: Manifest) -> bool:
    """Return True if a state without a step was written well before the copied state of the name:
    an older state that is still on a node, or was put back.  Both stay."""
    if source.step is not None or source.manifest is not None or not there.saved:
        return False
    earliest_ns = min(at_ns for _, at_ns in there.saved)
    return 0 < source.mtime_ns < earliest_ns - FROZEN_S * 1e9


# --- into the final places ------------------------------------------------------------------------


def place_folder(store: LocalStore, name: str) -> None:
    """Move a folder from the part, where all files are durable, to its place.  Raises TierError."""
    part, path = store.path(f"{name}{PART_SUFFIX}"), store.path(name)
    try:
        if not path.exists():
            part.rename(path)
            fsync_folder(path.parent)
            return
        try:
            exchange(part, path)
            fsync_folder(path.parent)
        except OSError:  # no exchange: for a moment neither folder is there; recover() repairs
            discard(path, store.folder)
            part.rename(path)
            fsync_folder(path.parent)
            return
    except OSError as error:
        raise TierError(f"{path}: cannot be committed: {error.strerror}") from error
    discard(part, store.folder)


def place(store: LocalStore, name: str) -> None:
    """Move the files of a checkpoint from the part, where all files are durable, to the final
    places beside the part.

    The move can resume after any interruption: no file is lost, and no file counts until the last
    file is in place.  Raises TierError; SaveError: the future manifest is damaged."""
    part = store.path(f"{name}{PART_SUFFIX}")
    noted = f"{name}{PART_SUFFIX}/{PLACE}"
    data = store.read(noted)
    manifest = parse(data, store.where(noted))
    start = name[: name.rfind("/") + 1]
    try:
        for file in manifest.files:
            if (part / file.name).exists():
                (part / file.name).replace(store.path(f"{start}{file.name}"))
        fsync_folder(part.parent)
    except OSError as error:
        raise TierError(f"{part}: cannot be put in its place: {error.strerror}") from error
    for file in manifest.files:  # marks of earlier single files
        for ending in (BESIDE, HALF):
            if store.stat(before := beside(f"{start}{file.name}", ending)) is not None:
                store.delete(before)
    store.put(beside(name, BESIDE), data)
    discard(part, store.folder)


def end_placing(store: LocalStore) -> None:
    """Finish the moves of a killed drain.  Raises TierError."""
    with suppress(SaveError):
        end_together(store)
    for file in list(store.list()):
        folder, _, base = file.name.rpartition("/")
        name = folder.removesuffix(PART_SUFFIX)
        if base == PLACE and name != folder and not is_alive(store.path(folder)):
            with suppress(SaveError):  # damaged: the part stays, and does not count
                place(store, name)


# --- several copies together ----------------------------------------------------------------------


def place_together(store: Store, targets: Sequence[CopyTarget]) -> None:
    """Move the copies of a save to the final places.  All copies are complete: from the record on,
    the newer save is whole, and the moves can be repeated.  Raises TierError, SaveError."""
    rows = [[target.name, target.is_folder] for target in targets]
    store.put(PLACING_TOGETHER, json.dumps({"version": 1, "copies": rows}).encode())
    end_together(store)


def end_together(store: Store) -> None:
    """Finish the moves of the copies of a save.  Raises TierError; SaveError: a future manifest is
    damaged."""
    record = kept_json(store, PLACING_TOGETHER, MOST_RECORD_BYTES)
    if record is None:
        return
    damaged: SaveError | None = None
    with suppress(TypeError, KeyError, ValueError):  # written by another program
        for name, is_folder in record["copies"]:
            try:
                _end_one(store, str(name), bool(is_folder))
            except SaveError as error:
                damaged = damaged or error
    store.delete(PLACING_TOGETHER)
    if damaged is not None:
        raise damaged


def _end_one(store: Store, name: str, is_folder: bool) -> None:
    waits = f"{name}{PART_SUFFIX}/{WAITS}"
    if store.stat(waits) is not None:
        if not isinstance(store, LocalStore):
            data = store.read(waits)
            wanted = {file.name for file in parse(data, store.where(waits)).files}
            place_draft(store, name, data, wanted, is_folder=is_folder)
        elif is_folder:
            store.delete(f"{name}{PART_SUFFIX}/{MARK}")
            place_folder(store, name)
        else:
            data = store.read(waits)
            parse(data, store.where(waits))
            store.put(f"{name}{PART_SUFFIX}/{PLACE}", data)
            store.delete(waits)
    if isinstance(store, LocalStore) and not is_folder and _has_journal(store, name):
        place(store, name)
    if is_folder and store.stat(f"{name}/{WAITS}") is not None:
        store.delete(f"{name}/{WAITS}")


def _has_journal(store: LocalStore, name: str) -> bool:
    return store.stat(f"{name}{PART_SUFFIX}/{PLACE}") is not None
