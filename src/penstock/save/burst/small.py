"""Many small files of a burst buffer, copied together: the waits of a batch are combined.

A batch goes file by file, or by the native copier with hundreds of files in a call.  Files that
need more than a copy are handed back to the drain.  Knows files and batches; the drain decides when
a batch is due.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

from penstock.errors import PenstockError, TierError
from penstock.places.stores import fsync_folder
from penstock.recording import recorder
from penstock.save.burst.arrivals import Arrivals
from penstock.save.burst.attempts import AbsentError, Attempts
from penstock.save.burst.crowd import Act, Crowd, is_for_crowd
from penstock.save.burst.file import (
    FOLDER,
    NEW,
    BurstFile,
    Hidden,
    _give_way,
    _link,
    hidden_of,
    is_torn,
    mark_home,
    may_be_torn,
    sweep_noted,
    swept_if_renamed,
)
from penstock.save.burst.links import folder_at
from penstock.save.burst.relinked import Refinding
from penstock.save.burst.saves import BurstSaves
from penstock.save.small import copier
from penstock.save.small.batch import MOST_FILES, Copy, Syncs, copy_together, read_all
from penstock.save.small.many import end_many, end_placed, names_in, note_many, note_placed

__all__ = ["SingleFiles", "SmallFiles"]

FAILURES = (copier.DIFFERS, copier.CHANGED, copier.FAILED)
_Failed = dict[str, str]


class SingleFiles(Protocol):
    """The drain's methods for a batch: the work on a single file, and the reports."""

    def absence(self, file: BurstFile) -> str: ...

    def drain_alone(self, file: BurstFile, failed: _Failed) -> bool: ...

    def placed(
        self, file: BurstFile, new: str | Path, before: os.stat_result, descriptor: int = -1
    ) -> os.stat_result | None: ...

    def end_late(self, file: BurstFile, new: Path) -> None: ...

    def say_device(self, before: os.stat_result, folder: Path) -> None: ...

    def say_batch(self, n_files: int, n_bytes: int) -> None: ...

    def say_drained(self, n_files: int, n_bytes: int, last: BurstFile) -> None: ...

    def held(self) -> None: ...

    def take(self, n_bytes: int) -> None: ...

    def through(self, n_bytes: int) -> None: ...

    def n_drained(self) -> int: ...

    def say_no_error(self) -> None: ...


class SmallFiles:
    """The batches of a drain.

    settle_s: after how many seconds without a change a file counts as written, on a file system
    without leases.  rewritten: paths of several files on the tier, at the last look.
    """

    def __init__(
        self,
        tier: Path,
        settle_s: float,
        drain: SingleFiles,
        attempts: Attempts,
        saves: BurstSaves,
        arrivals: Arrivals,
        refinding: Refinding,
    ) -> None:
        self._tier, self._settle_s, self._drain = tier, settle_s, drain
        self._attempts, self._saves, self._arrivals = attempts, saves, arrivals
        self._refinding = refinding
        self._syncs = Syncs()
        self.rewritten: set[str] = set()
        # For the current batch: the numbers of the files at their paths, and the notes of these
        # files on the tier.
        self._placed, self._notes = list[int](), list[str]()

    def drain(self, batch: Sequence[BurstFile], failed: _Failed) -> bool:
        """Drain a batch; return False if no file of the batch may go now.

        failed: receives the reason for each file not drained.
        """
        present = self._present(batch, failed)
        if is_for_crowd([file.folder_at for file in present], self._syncs):
            return self._drain_crowd(present, failed)
        tried = [
            self._drain_together(present[start : start + MOST_FILES], failed)
            for start in range(0, len(present), MOST_FILES)
        ]
        return any(tried)

    def _drain_together(self, batch: Sequence[BurstFile], failed: dict[str, str]) -> bool:
        """Drain each file of a batch as _drain() does, with the waits combined.

        Return False if each of the files has a writer.
        """
        ones = {file.name: file for file in batch}
        copies = self._read_together(batch, failed)
        for copy in copies.values():
            if copy.error is None and not copy.is_plain:
                self._drain.drain_alone(ones[copy.name], failed)
        plain = [copy for copy in copies.values() if copy.status is not None and copy.is_plain]
        self._drain.say_batch(len(plain), _bytes_of(plain))
        try:
            self._saves.beforehand.mark([ones[copy.name] for copy in plain])
        except TierError as error:
            for copy in plain:
                self._fail_copy(ones[copy.name], error, failed)
            return True
        self._copy_plain(plain, ones, failed)
        for copy in copies.values():
            if copy.error is not None:
                self._fail_copy(ones[copy.name], copy.error, failed)
        return any(copy.status is not None or copy.error is not None for copy in copies.values())

    def _copy_plain(
        self, plain: Sequence[Copy], ones: Mapping[str, BurstFile], failed: dict[str, str]
    ) -> None:
        """Copy the files of a batch that need only a copy."""
        files = [ones[copy.name] for copy in plain]
        notes = self._note_drafts(files)
        self._refinding.copied = {copy.name for copy in plain}

        def place(copy: Copy, descriptor: int) -> os.stat_result | None:
            assert copy.status is not None
            return self._drain.placed(ones[copy.name], copy.new, copy.status, descriptor)

        try:
            with recorder.span("drain", self._drain.n_drained()), swept_if_renamed(files):
                copy_together(plain, self._before_copies, place, self._syncs)
        finally:  # also after a stop of the drain: the placed files have arrived
            self._refinding.copied = set()
            placed = [copy for copy in plain if copy.put is not None]
            durable = self._synced(placed, ones, failed)
            self._arrived_together([(ones[name], copy) for name, copy in durable.items()], failed)
            end_many(f"{self._tier}/{FOLDER}/draft", notes)

    def _present(self, batch: Sequence[BurstFile], failed: dict[str, str]) -> list[BurstFile]:
        """Return the files with an existing folder; record a failed attempt for each other file."""
        absent: dict[str, str] = {}
        present = []
        for file in batch:
            folder = file.folder_at
            if folder not in absent:
                absent[folder] = self._drain.absence(file)
            if why := absent[folder]:
                with self._attempts.trying(file, failed):
                    raise AbsentError(why)
            else:
                present.append(file)
        return present

    def _drain_crowd(self, batch: Sequence[BurstFile], failed: dict[str, str]) -> bool:
        """Drain as _drain_together(), by the native copier: hundreds of files in a call.

        Return False if each of the files has a writer.
        """
        self._drain.say_batch(len(batch), sum(file.size_bytes or 0 for file in batch))

        def before(n_bytes: int) -> None:
            self._drain.take(n_bytes)
            self._drain.through(0)

        try:
            self._saves.beforehand.mark(batch)
        except TierError as error:
            for file in batch:
                self._fail_copy(file, error, failed)
            return True
        notes = self._note_drafts(batch)
        self._refinding.copied = {file.name for file in batch}
        self._refinding.put_off()  # the look has just searched
        with Crowd(f"{self._tier}/{FOLDER}", batch, self._settle_s, before) as many:
            try:
                with recorder.span("drain", self._drain.n_drained()):
                    self._bring(batch, many, failed)
            finally:
                self._refinding.copied = set()
                self._arrived_crowd(batch, many, failed)
                end_many(f"{self._tier}/{FOLDER}/draft", notes)
            for at in (at for state in FAILURES for at in many.numbers(state)):
                why = many.error(at, batch[at].beside_at(NEW))
                if why is not None:
                    self._fail_copy(batch[at], why, failed)
            is_tried = any(state != copier.BUSY for state in many.states())
        for at in many.torn():
            self._drain.drain_alone(batch[at], failed)
        return is_tried

    def _bring(self, batch: Sequence[BurstFile], many: Crowd, failed: dict[str, str]) -> None:
        """Bring the files to their paths, and note and clear each part.  Raises Stopped."""
        left = many.parts()
        try:
            with closing(many.bring(is_torn, self._syncs, self._act(batch))) as parts:
                for part in parts:
                    self._end_odd(batch, many, part, failed)
                    left.remove(part)
                    self._clear(batch, many, part)
        finally:  # also after a stop of the drain: the placed files have arrived
            for part in left:
                self._clear(batch, many, part)

    def _clear(self, batch: Sequence[BurstFile], many: Crowd, part: range) -> None:
        """Note the arrival of a part's placed files on the tier; then remove the links there."""
        placed = many.numbers(copier.PLACED, part)
        if not placed:
            return
        self._placed.extend(placed)
        self._notes.append(self._note_placed([batch[at] for at in placed]))
        many.clear(part)

    def _act(self, batch: Sequence[BurstFile]) -> Act:
        def give_way(at: int, ours: int) -> None:
            file = batch[at]
            _give_way(file.beside(NEW), file, file.home, ours)

        def lead_back(at: int, put: os.stat_result) -> None:
            _link(batch[at], put)
            batch[at].beside(NEW).unlink(missing_ok=True)

        return Act(give_way, lead_back)

    def _end_odd(
        self, batch: Sequence[BurstFile], many: Crowd, part: range, failed: dict[str, str]
    ) -> None:
        """End the work on files of a part with a changed path, or without an exchange."""
        for at in many.numbers(copier.LATE, part):
            with self._attempts.trying(batch[at], failed):
                self._drain.end_late(batch[at], batch[at].beside(NEW))
        for at in many.numbers(copier.NO_EXCHANGE, part):
            file = batch[at]
            try:
                put = self._drain.placed(file, file.beside_at(NEW), many.before(at))
            except (TierError, OSError) as error:
                self._fail_copy(file, error, failed)
                continue
            many.set_state(at, copier.LATE if put is None else copier.PLACED)

    def _arrived_crowd(
        self, batch: Sequence[BurstFile], many: Crowd, failed: dict[str, str]
    ) -> None:
        """Record the final arrival of the placed files, and remove the files from the tier."""
        exchanged, self._placed = self._placed, []
        notes, self._notes = self._notes, []
        if not exchanged:
            return
        many.sync_folders()
        placed = many.numbers(copier.PLACED)
        for at in set(exchanged) - set(placed):  # the next look syncs the folder again
            mark_home(batch[at])
            error = many.error(at, batch[at].home_at)
            with self._attempts.trying(batch[at], failed):
                assert error is not None
                raise error
        hidden = hidden_of(batch[at].folder_at for at in placed)
        self._arrivals.homes |= dict.fromkeys(folder_at(folder) for folder in hidden)
        odd: set[int] = set()
        with ThreadPoolExecutor(1) as pool:
            dropping = []
            for part in many.parts():
                stay = self._tell_placed(batch, many, part, hidden)
                odd.update(stay)
                dropping.append(pool.submit(many.drop, part, stay))
            for part_drop in dropping:
                part_drop.result()
        for at in odd:
            file = batch[at]
            try:
                self._arrivals.note(file, many.before(at), many.put(at), hidden.get(file.folder_at))
            except (PenstockError, OSError) as error:
                with self._attempts.trying(file, failed):
                    raise error
        for at in many.kept():
            mark_home(batch[at])
            if at not in odd:  # the next look finds the reason
                self._arrivals.gone[batch[at].name] = many.before(at), many.put(at)
        for note in notes:
            end_placed(note)
        if self._attempts:
            for at in placed:
                self._attempts.forget(batch[at].home_at)
        if placed:
            n_bytes = sum(map(many.size_bytes.__getitem__, placed))
            self._drain.through(n_bytes)
            self._drain.say_drained(len(placed), n_bytes, batch[placed[-1]])
            self._drain.say_no_error()

    def _tell_placed(
        self, batch: Sequence[BurstFile], many: Crowd, part: range, hidden: Mapping[str, Hidden]
    ) -> list[int]:
        """Record the placed files of a part.

        Return the numbers of the files with further files of the path in the folder: the drain
        treats these files singly.
        """
        rows = many.facts(part)
        came: dict[str, list[tuple[str, str]]] = {}
        odd, now_s = [], time.time()
        for at in many.numbers(copier.PLACED, part):
            file = batch[at]
            folder, _, base = file.home_at.rpartition("/")
            of_folder = hidden.get(folder or "/")
            if of_folder is None or of_folder.has_any(file) or file.home_at in self.rewritten:
                odd.append(at)
                continue
            came.setdefault(folder, []).append((file.name, base))
            size_bytes, mtime_ns = rows[at - part.start]
            self._arrivals.tell(file, size_bytes, max(0.0, now_s - mtime_ns / 1e9))
        for folder, files in came.items():
            self._saves.earlier.came_together(folder_at(folder), files, False)
        return odd

    def _note_placed(self, placed: Sequence[BurstFile]) -> str:
        """Note on the tier that files are at their paths, for the drain after a killed drain.

        On a full tier mark each file instead.  Return the path of the note.
        """
        try:
            return note_placed(
                f"{self._tier}/{FOLDER}/draft", [file.name for file in placed]
            )  # fmt: skip
        except OSError:
            for file in placed:
                mark_home(file)
            return ""

    def _read_together(self, batch: Sequence[BurstFile], failed: dict[str, str]) -> dict[str, Copy]:
        """Read the files of a batch; return the copies by tier name."""
        homes = {file.name: file.home_at for file in batch}
        copies = [
            Copy(file.name, file.data_at, file.beside_at(NEW), file.folder_at) for file in batch
        ]  # fmt: skip

        def is_plain(copy: Copy, data: bytes) -> bool:
            home = homes[copy.name]
            name = home.rpartition("/")[2]
            return not (may_be_torn(data, name) and is_torn(Path(copy.source), name))

        read_all(copies, lambda part: self._drain.held(), self._settle_s, is_plain)
        return {copy.name: copy for copy in copies}

    def _note_drafts(self, batch: Sequence[BurstFile]) -> list[str]:
        """Note the folders of the drafts on the tier, so that the next drain can sweep drafts."""
        folder = f"{self._tier}/{FOLDER}/draft"
        of_folder: dict[str, list[str]] = {}
        noted: set[str] = set()
        with suppress(OSError):
            noted = set(names_in(folder))
        for file in batch:
            of_folder.setdefault(file.folder_at, []).append(file.name)
            if file.name in noted:  # by a drain that copied the file alone
                sweep_noted(file.draft, file.beside_at(NEW))
        for at in of_folder:
            with suppress(OSError):
                self._drain.say_device(self._tier.stat(), Path(at))
        return note_many(folder, of_folder)

    def _before_copies(self, copies: Sequence[Copy]) -> None:
        """Wait until the copies may be written or read back.  Raises Stopped."""
        self._drain.take(_bytes_of(copies))
        self._drain.through(0)

    def _fail_copy(self, file: BurstFile, error: Exception, failed: dict[str, str]) -> None:
        with self._attempts.trying(file, failed):
            if file.is_linked() or self._drain.absence(file):
                raise error
            # Else the link was removed, or the folder was renamed: the next look finds the link.

    def _synced(
        self, placed: Sequence[Copy], ones: Mapping[str, BurstFile], failed: dict[str, str]
    ) -> dict[str, Copy]:
        """Sync the folders of the placed files.  Return the files with a synced folder."""
        of_folder: dict[str, list[Copy]] = {}
        for copy in placed:
            of_folder.setdefault(copy.folder, []).append(copy)
        done: dict[str, Copy] = {}
        for folder, copies in of_folder.items():
            try:
                fsync_folder(folder)
                done |= {copy.name: copy for copy in copies}
            except OSError as error:
                for copy in copies:
                    with self._attempts.trying(ones[copy.name], failed):
                        raise error
        return done

    def _arrived_together(
        self, done: Sequence[tuple[BurstFile, Copy]], failed: dict[str, str]
    ) -> None:
        """Record the arrival of each file of a batch, as _arrived() does for a single file."""
        hidden = hidden_of(file.folder_at for file, _ in done)
        n_bytes = 0
        for file, copy in done:
            assert copy.status is not None and copy.put is not None  # noqa: PT018
            try:
                self._arrivals.note(file, copy.status, copy.put, hidden.get(file.folder_at))
                n_bytes += copy.status.st_size
                self._attempts.forget(file.home_at)
            except (PenstockError, OSError) as error:
                with self._attempts.trying(file, failed):
                    raise error
        if done:
            self._drain.through(n_bytes)
            self._drain.say_drained(len(done), n_bytes, done[-1][0])
            self._drain.say_no_error()


def _bytes_of(copies: Sequence[Copy]) -> int:
    return sum(copy.status.st_size for copy in copies if copy.status is not None)
