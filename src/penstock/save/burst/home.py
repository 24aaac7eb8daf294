"""Copy checkpoints, written by a recorded program to a fast tier, to the program's own paths.

    FAST/burst/data/ID-NAME    the file, created by native/burst.c
    FAST/burst/home/ID-NAME    a link to the program's path; ID-NAME.penstock-home when the file has
                               arrived there, or when the program removes the path: then the file in
                               data/ may be removed as soon as no path leads there
    FAST/burst/draft/ID-NAME   a link to the draft beside the program's path; for many small files
                               see drafts.py
    the program's path         a link to the file on the tier, until the file arrives

The names on the tier are the whole state of the work: after any end of the drain, of the program or
of the machine, the next look continues.  Knows links and files; knows no framework.  A file is torn
only if the file's own format shows so.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from penstock.errors import SaveError, TierError, TierFull
from penstock.places.stores import LocalStore, StoredFile, draft_of, fsync_folder
from penstock.recording import recorder
from penstock.save.burst import crowd
from penstock.save.burst.arrivals import Arrivals
from penstock.save.burst.attempts import (
    ABSENT,
    AbsentError,
    Attempts,
    UnfinishedError,
    said_unclaimed,
)
from penstock.save.burst.file import (
    FOLDER,
    ID_LETTERS,
    NEW,
    OWNER,
    BurstFile,
    _link,
    _put,
    _sweep,
    _target,
    as_checkpoint,
    change,
    drop,
    entries,
    is_marked,
    is_that,
    is_torn,
    merge_marks,
    put_opened,
    sweep_drafts,
    sweep_noted,
    swept_if_renamed,
    take,
    torn_of,
    unmark,
    was_replaced,
    ways_on,
)
from penstock.save.burst.links import (
    are_one_file,
    fsync_file,
    has_moved,
    is_as_before,
    is_bad,
    is_file,
    is_small,
    lead_aside,
    linked_files,
    oldest_age_s,
    repeated,
    root_of,
    versions_in,
    written_again,
)
from penstock.save.burst.mend import led_elsewhere, listed
from penstock.save.burst.relinked import Refinding
from penstock.save.burst.saves import BurstSaves
from penstock.save.burst.small import SmallFiles
from penstock.save.commit import claim
from penstock.save.copy.copying import Trip, copy_file
from penstock.save.drain.neighbours import (
    Heard,
    any_is_running,
    forget_unheard,
    is_heard,
    is_running,
)
from penstock.save.drain.working import (
    LEAST_DELAY_S,
    LOOK_S,
    LOOK_SHARE,
    MOST_BLIND_S,
    MOST_DELAY_S,
    DrainSettings,
    DrainStatus,
    Working,
    no_collection,
    sentence,
)
from penstock.save.manifest import FileSum, Manifest
from penstock.save.overwritten.earlier import give_back_save, is_earlier, was_of
from penstock.save.overwritten.putback import mark_put_back
from penstock.save.small import copier
from penstock.save.small.batch import MOST_BYTES, MOST_FILES, SMALL_BYTES
from penstock.save.small.lease import Lease, leased
from penstock.save.verify import verify

__all__ = ["Burst"]

DEAR_S = 10 * LOOK_S  # the pause after a look of 0.5 s; only longer pauses delay the next look


# A program with MANY_GROWING small files in a row is faster while the drain waits: program and
# drain need the lock of the same folder, and the CPU.  The save ends after GROWN_S without a file.
MANY_GROWING, GROWN_S, MOST_GROWING_S = 64, LOOK_S, 10.0


class Burst(Working):
    """The drain of a fast tier in the current process: copies each file to the file's path.

    Use as a context.

    owner: the run whose log lists the files, see launch.burst_owner(); "": every run.
    is_patient: while another process drains the tier, watch() waits until the process has ended,
    or until the owner's files are at their paths.
    Raises SaveError: another process drains the tier; TierError: no tier folder was ever made.
    """

    def __init__(
        self,
        fast: str | os.PathLike[str],
        settings: DrainSettings | None = None,
        *,
        share: Callable[[], float | None] | None = None,
        listener: Callable[[DrainStatus], None] = lambda status: None,
        clock: Callable[[], float] = time.monotonic,
        owner: str = "",
        is_patient: bool = False,
    ) -> None:
        super().__init__(os.path.realpath(fast), settings, share, listener, clock)
        ways_on(self.fast.folder)
        self._owner, self._is_patient, self._has_turn = owner, is_patient, True
        self._heard = Heard(self.fast.folder, owner) if owner and is_patient else None
        self._over_as = (
            ""  # after the end of the followed program: the tier name of a file made at the end
        )
        self._look_again_s, self._failed = -math.inf, dict[str, str]()  # after an expensive look
        self._said_device = False
        self._is_following = False  # whether a program may still write
        self._has_growing = False  # at the last look: a save of many small files
        self._devices: dict[Path, int] = {}  # device by folder, for folders with a link
        self._attempts = Attempts(clock, self._say, lambda: self.status.reason)
        tier, settle_s = self.fast.folder, self.settings.settle_s
        self._saves = BurstSaves(tier, clock, self.settings.saves, self._warn)
        self._arrivals = Arrivals(
            tier, owner, settle_s, self._saves.earlier, lambda file: self._forget_was(file)
        )
        self._refinding = Refinding(
            clock,
            lambda file: self._may_go(file, {}),
            lambda file, is_dead: self._end_was(file, is_dead),
        )
        self._small = SmallFiles(
            tier, settle_s, self, self._attempts, self._saves, self._arrivals, self._refinding
        )

    def __enter__(self) -> Self:
        if self._heard is not None:
            self._heard.listen()
        try:
            super().__enter__()
            forget_unheard(self.fast.folder)
        except SaveError:
            if not self._is_patient:
                raise
            self._has_turn = False
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(TierError, OSError):  # else the next drain forgets and reports
            if self._has_turn:
                self._arrivals.forget_committed()
            lost = [file for file in self._own_unclaimed() if not file.home.parent.is_dir()]
            left = [*self.backlog(), *lost]
            self._backlog(left)
            if lost and not self.status.error:
                self._say(error=f"{lost[0].home.parent}: {ABSENT}", reason="absent")
            ours = [file for file in left if self._is_ours(file)]
            n_bytes = sum(file.size_bytes or 0 for file in ours)
            recorder.note("drain left", f"{len(ours)} {n_bytes} {oldest_age_s(ours):.3f}")
        with suppress(OSError):
            said = led_elsewhere(self._arrivals.homes, self.fast.folder, self._owner, deepest=0)
            self._warn("; ".join(said))
        if self._heard is not None:
            self._heard.close()
        super().__exit__(*error)

    def _publish(self, is_last: bool = False) -> None:
        if self._has_turn:  # else another drain writes the status
            super()._publish(is_last)

    # --- two runs on a tier

    def watch(self, is_over: Callable[[], bool], grace_s: float = math.inf) -> list[str]:
        self._is_following = True

        def has_ended() -> bool:
            if not self._over_as and is_over():
                self._over_as = f"{time.time_ns():016x}"
            return bool(self._over_as)

        if not self._has_turn and not self._awaits_turn(has_ended, grace_s):
            return [
                f"{file.home}: another process drains {self.fast.url}, and has not brought it"
                for file in self._awaited()
            ]
        failed = super().watch(has_ended, grace_s)
        with suppress(OSError, TierError):  # else the next drain forgets the files
            self._arrivals.forget_committed()
            if self._owed():  # a program wrote to the last file during the arrival
                failed = super().watch(has_ended, grace_s)
            self._let_go()
        self._settle()
        return [*failed, *said_unclaimed(self._own_unclaimed())]

    def _is_idle(self, failed: dict[str, str]) -> bool:
        return super()._is_idle(failed) and not self._has_growing

    def _settle(self) -> None:
        """Remove the recently replaced files.  Raises Stopped."""
        end_s = self._clock() + 2 * LOOK_S
        with suppress(OSError, TierError):  # else the next drain removes the files
            while self._clock() < end_s and any(file.is_home for file in self._astray()):
                self._rest(LOOK_S / 4)
                lying = self._lying()
                self._refinding.find_again(lying, linked_files(lying))

    def _awaits_turn(self, is_over: Callable[[], bool], grace_s: float) -> bool:
        """Wait for the end of another drain; return True if the turn came.  Return False if the
        owner's files are at their paths, or grace_s after is_over() has returned True.  Raises
        Stopped."""
        over_s = math.inf
        while True:
            with suppress(SaveError, TierError):
                self._claims.enter_context(claim(self.fast.folder, "drain"))
                self._has_turn = True
            if self._heard is not None:
                self._heard.listen()
            if self._has_turn:
                return True
            if over_s == math.inf and is_over():
                over_s = self._clock()
            if over_s < math.inf:
                with suppress(TierError):  # the tier may come back
                    if not self._awaited():
                        return False
                if self._clock() - over_s >= grace_s:
                    return False
            self._rest(LOOK_S / 4)

    def _awaited(self) -> list[BurstFile]:
        """Return the owner's files that are not at their paths yet.  Raises TierError."""
        ours = [file for file in entries(self.fast.folder) if self._is_ours(file)]
        return [file for file in ours if self._is_early(file) and os.path.lexists(file.home)]

    def _owed(self) -> list[BurstFile]:
        """Return the files that must be at their paths before the end of the drain.  Excluded:
        later files of other runs, and files for which the drain of another run waits."""
        return self._of_owed(self.backlog())

    def _of_owed(self, left: list[BurstFile]) -> list[BurstFile]:
        if not self._over_as:
            return left
        return [
            file
            for file in left
            if self._is_ours(file)
            or (self._is_early(file) and not is_heard(self.fast.folder, file.owner))
        ]

    def _is_early(self, file: BurstFile) -> bool:
        """Return True if a file was made before the end of the followed program."""
        return not self._over_as or file.name < self._over_as

    def _is_ours(self, file: BurstFile) -> bool:
        return self._owner in ("", file.owner)

    # --- the backlog

    def backlog(self) -> list[BurstFile]:
        """Return the files on the fast tier only, newest first.  Raises TierError."""
        files = entries(self.fast.folder, None, self._arrivals.gone)
        return [file for file in files if self._is_due(file)]

    def _is_due(self, file: BurstFile, linked: Mapping[str, BurstFile] | None = None) -> bool:
        """Return True if a file has to go to its path.  linked: a result of linked_files()."""
        if file.name in self._arrivals.gone:
            return False
        if file.size_bytes is None:
            return has_moved(file)
        is_linked = file.is_linked() if linked is None else linked.get(file.home_at) is file
        return is_linked or (not file.is_home and bool(self.absence(file)))

    def absence(self, file: BurstFile) -> str:
        """Return why a path cannot be checked for a link; empty: the path can be checked.  If the
        nearest existing parent is on another file system than the folder was, the program has not
        removed the folder: the file system is not mounted."""
        folder = file.home.parent
        try:
            device = folder.stat().st_dev
        except (FileNotFoundError, NotADirectoryError):
            was_on = self._devices.get(folder)
            if was_on is not None and root_of(file.home).stat().st_dev != was_on:
                return f"{folder}: {ABSENT}"
            return ""
        except OSError as error:
            return f"{folder}: {error.strerror}"
        if file.is_linked():
            self._devices.setdefault(folder, device)
        elif device != self._devices.get(folder, device):
            return f"{folder}: is on another file system than before: is that mounted?"
        return ""

    def unclaimed(self) -> list[BurstFile]:
        """Return the files on the tier without a path that leads there.  Raises TierError."""
        return [file for file in self._astray() if not file.is_home]

    def _astray(self) -> list[BurstFile]:
        gone = self._arrivals.gone
        return [file for file in self._lying() if not self._is_due(file) and file.name not in gone]

    def _lying(self) -> list[BurstFile]:
        """Return the files stored on the tier."""
        return [file for file in entries(self.fast.folder) if file.size_bytes is not None]

    def once(self) -> list[str]:
        """Drain all files without a writer.  Return a message for each file not drained, with the
        reason, and for each unclaimed file.  Raises Stopped, TierError."""
        failed: dict[str, str] = {}
        for attempt in range(self.settings.tries):
            self._look_again_s = -math.inf
            failed = self._round()
            with suppress(OSError):  # the next look retries
                self._arrivals.forget_committed()
            left = self.backlog()
            self._backlog(left)
            self._let_go(left)
            if not (failed or self.backlog() or self._astray()):
                break
            if attempt + 1 < self.settings.tries:
                self._rest(min(MOST_DELAY_S, LEAST_DELAY_S * (1 if not failed else 2**attempt)))
                self._attempts.clear()
        failed |= {
            file.home.as_posix(): "still being written"
            for file in self.backlog()
            if file.home.as_posix() not in failed
        }
        return [
            *(sentence(name, why) for name, why in failed.items()),
            *said_unclaimed(self._own_unclaimed()),
        ]

    def _own_unclaimed(self) -> list[BurstFile]:
        """Return the owner's unclaimed files.  Raises TierError."""
        return [file for file in self.unclaimed() if self._is_ours(file)]

    def _round(self) -> dict[str, str]:
        with no_collection():
            return self._rounds()

    def _rounds(self) -> dict[str, str]:
        if self._clock() < self._look_again_s and not self._over_as:
            return self._failed
        failed: dict[str, str] = {}
        look = self._look
        while True:
            begun_s = self._clock()
            left = look()
            self._saves.rounds.saw(left, are_all=False)
            self._backlog(left)
            self._let_go(left)
            # Looks at tens of thousands of files take seconds, and must not take most of the time.
            until_s = self._clock() + max(LOOK_S, self._pause_after(begun_s))
            has_tried = False
            for batch in self._batches(self._of_owed(left), failed):
                has_tried |= self._try(batch, failed)
                if self._clock() >= until_s:
                    break
            if not failed:
                self._say(reason="")
            if not has_tried:
                self._failed, pause_s = failed, self._pause_after(begun_s)
                self._look_again_s = self._clock() + (pause_s if pause_s > DEAR_S else 0.0)
                return failed
            look = self.backlog

    def _batches(
        self, left: Sequence[BurstFile], failed: dict[str, str]
    ) -> Iterator[Sequence[BurstFile]]:
        """Yield the due files: small files in batches, other files singly.  failed: receives the
        reason for each file not due."""
        small: list[BurstFile] = []
        n_bytes = 0
        self._has_growing = self._is_growing(left)
        if self._has_growing:
            left = [file for file in left if not is_small(file)]
        # With a bandwidth limit, bound the batch: no file is renamed before the whole batch is
        # copied.
        most_bytes = min(MOST_BYTES, self.settings.limit_bps or MOST_BYTES)
        most_files = crowd.MOST_FILES if copier.is_built() else MOST_FILES
        for file in left:
            if not self._attempts.is_time(file, failed):
                continue
            size_bytes = file.size_bytes
            if size_bytes is None or size_bytes > SMALL_BYTES:
                yield [file]
                continue
            small.append(file)
            n_bytes += size_bytes
            if len(small) >= most_files or n_bytes >= most_bytes:
                yield small
                small, n_bytes = [], 0
        if small:
            yield small

    def _is_growing(self, left: Sequence[BurstFile]) -> bool:
        """Return True while a followed program makes a save of many small files."""
        if not self._is_following or self._over_as or len(left) < MANY_GROWING:
            return False
        small = [file for file in left if is_small(file)]
        times_s = sorted(file.mtime_ns / 1e9 for file in small)
        now_s = time.time()
        is_growing = len(small) >= MANY_GROWING and 0 <= now_s - times_s[-MANY_GROWING] < GROWN_S
        if not is_growing or now_s - times_s[0] > MOST_GROWING_S:
            return False
        free = os.statvfs(self.fast.folder)
        return sum(file.size_bytes or 0 for file in small) < free.f_bavail * free.f_frsize

    def _pause_after(self, begun_s: float) -> float:
        return min(MOST_BLIND_S, (self._clock() - begun_s) / LOOK_SHARE)

    def _look(self) -> list[BurstFile]:
        """Do all work without copies; return the files to copy.  Raises TierError."""
        folder = self.fast.folder
        try:
            self._arrivals.forget_committed()
            sweep_drafts(folder / FOLDER)
            merge_marks(folder / FOLDER)
            files = entries(folder)
            self._saves.rounds.saw(files)
            with suppress(TierError):  # a full tier, which only the drain can empty
                self._saves.rounds.keep()
            linked = linked_files(files)
            self._small.rewritten = repeated(file.home_at for file in files)
            for file in {file.folder_at: file for file in linked.values()}.values():
                if file.home.parent not in self._devices:
                    self.absence(file)
            if self._refinding.find_again(
                [file for file in files if file.size_bytes is not None], linked
            ):
                return self.backlog()
        except OSError as error:  # a program changes names meanwhile: the next look retries
            raise TierError(str(error)) from error
        return [file for file in files if self._is_due(file, linked)]

    def _try(self, batch: Sequence[BurstFile], failed: dict[str, str]) -> bool:
        """Drain a batch; return False if no file of the batch may go now.  failed: receives the
        reason for each file not drained."""
        if len(batch) > 1:
            return self._small.drain(batch, failed)
        return self.drain_alone(batch[0], failed)

    def drain_alone(self, file: BurstFile, failed: dict[str, str]) -> bool:
        """Drain one file; return False if the file may not go now.  failed: as for _try()."""
        if not self._may_go(file, failed):
            return False
        with self._attempts.trying(file, failed):
            self._drain(file)
        return True

    def _may_go(self, file: BurstFile, failed: dict[str, str]) -> bool:
        """Return True if no process writes to a file.  failed: why files cannot go in the round,
        by path; receives the reason for the file."""
        name = file.home.as_posix()
        if name in failed:
            return False
        try:
            path = file.home if file.size_bytes is None else file.data
            with leased(path, self.settings.settle_s) as lease:
                return lease.is_free
        except (FileNotFoundError, NotADirectoryError):
            return file.size_bytes is None  # the path is gone: no reason to wait
        except OSError as error:
            failed[name] = str(error)
            return False

    # --- a single file

    def _drain(self, file: BurstFile) -> None:
        before = self._begun(file)
        if before is None:
            return
        name, total_bytes = file.home.name, before.st_size
        self._say(state="draining", current=name, done_bytes=0, total_bytes=total_bytes)
        with recorder.span("drain", self.status.drained), swept_if_renamed([file]):
            try:
                new = self._copy(file, before)
            except (TierError, OSError):
                if file.is_linked() or self.absence(file):
                    raise
                return  # removed, or the folder was renamed: the next look finds the link
            try:
                self._saves.beforehand.mark([file])
                put = self.placed(file, new, before)
                if put is None:
                    return
                fsync_folder(file.home.parent)
            finally:
                new.unlink(missing_ok=True)
        self._arrived(file, before, put)

    def _begun(self, file: BurstFile) -> os.stat_result | None:
        """Return the file's status before the copy; None: nothing to copy.  Raises TierError,
        OSError."""
        if file.size_bytes is None:
            if not os.path.lexists(file.data):  # else the program created the file during the look
                self._end_moved(file)
            return None
        if why := self.absence(file):
            raise AbsentError(why)
        torn = self._torn(file)
        if not file.is_linked():
            return None  # the torn check takes time: the path was removed or renamed
        if torn is not None:
            self._give_back(file, torn)
            return None
        return file.data.stat()

    def placed(
        self, file: BurstFile, new: str | Path, before: os.stat_result, descriptor: int = -1
    ) -> os.stat_result | None:
        """Put the copy at the file's path and return the copy's status.  None: the program changed
        the path first.  descriptor: of the copy, if open.  Raises TierError, OSError."""
        with self._as_it_was(file, before) as lease:
            is_open = descriptor >= 0
            put = put_opened(os.fspath(new), file, descriptor) if is_open else _put(Path(new), file)
            if put is not None and lease.is_wanted():
                # A process that opened the file through the link still writes to the tier: no
                # process may read or continue the copy at the path.
                _link(file._replace(is_home=True), put)
                raise written_again(file)
        if put is None:
            self.end_late(file, Path(new))
        return put

    def _arrived(self, file: BurstFile, before: os.stat_result, put: os.stat_result) -> None:
        """Record the final arrival of a file.  Raises TierError, OSError."""
        self._arrivals.note(file, before, put)
        self.say_drained(1, before.st_size, file)

    def say_drained(self, n_files: int, n_bytes: int, last: BurstFile) -> None:
        self._say(
            drained=self.status.drained + n_files,
            drained_bytes=self.status.drained_bytes + n_bytes,
            last=last.home_at,
        )

    @contextmanager
    def _as_it_was(self, file: BurstFile, before: os.stat_result) -> Iterator[Lease]:
        """Keep a file without a writer within the block.  Raises TierError: a process writes to the
        file, or has written since `before`."""
        with leased(file.data_at, self.settings.settle_s) as lease:
            if not lease.is_free or not is_as_before(os.stat(file.data_at), before):  # noqa: PTH116
                raise written_again(file)
            yield lease

    def _forget_was(self, file: BurstFile, is_dead: bool = False) -> None:
        """Keep the earlier file of a path until the whole save is home.  is_dead: the program was
        killed before making the link."""
        if os.path.lexists(file.was):
            is_link = _target(file.was) == file.data_at  # see was_put()
            if is_link or (is_dead and are_one_file(file.was, file.home)):
                file.was.unlink(missing_ok=True)
            else:
                self._saves.earlier.keep(file.home)
        # The same under the name at creation, if the file was renamed and no file has the old name.
        made_as = file.home.with_name(file.name[ID_LETTERS:])
        if os.path.lexists(was_of(made_as)) and not os.path.lexists(made_as):
            was_of(made_as).unlink(missing_ok=True)

    def _end_was(self, file: BurstFile, is_dead: bool = False) -> None:
        """Remove the earlier file of a path; put the earlier file back if the file is torn.  A
        killed drain, or a program on a full tier, leaves both files.  Raises TierError: the file is
        being written."""
        if is_file(file.home):
            if is_file(file.was) and self._has_put_back(file):
                return
            fsync_file(file.home)
        self._forget_was(file, is_dead)

    def _has_put_back(self, file: BurstFile) -> bool:
        """Put the earlier file of a path back if the file there is torn; return True if so."""
        self._await_end(file.home, file)
        torn = self._left_torn(file.home, file)
        with leased(file.home, self.settings.settle_s) as lease:
            is_bad = is_torn(file.home, file.home.name)
            if not lease.is_free:
                raise written_again(file)
            if not is_bad:
                return False
            if torn is None or not is_as_before(file.home.lstat(), torn):
                raise written_again(file)
            aside, torn_before = torn_of(file), torn
            self._gives_back_save(file, None)
            aside.unlink(missing_ok=True)
            if torn.st_size:
                aside.hardlink_to(file.home)
            if not change(file.was, file, lambda path: is_that(path, torn_before)):
                aside.unlink(missing_ok=True)
                raise written_again(file)
            file.was.unlink(missing_ok=True)
            self._say_damaged(file)
        return True

    def _copy(self, file: BurstFile, before: os.stat_result) -> Path:
        """Copy a file to a draft beside the file's path, sync the draft and read the draft back.
        Raises TierError, OSError."""
        self._refinding.copied = {file.name}
        try:
            return self._copy_to(file.beside(NEW), file, before)
        finally:
            self._refinding.copied = set()

    def _note_draft(self, file: BurstFile, new: Path, before: os.stat_result) -> None:
        """Note the place of a draft on the tier, so that the next drain can sweep the draft.
        Raises OSError."""
        if _target(file.draft) != os.fspath(new):
            sweep_noted(file.draft)
        with suppress(OSError):  # the note exists already, or the tier is full
            file.draft.parent.mkdir(exist_ok=True)
            file.draft.symlink_to(new)
        self.say_device(before, file.home.parent)

    def _copy_to(self, new: Path, file: BurstFile, before: os.stat_result) -> Path:
        self._note_draft(file, new, before)
        dest = LocalStore(new.parent, makes_folders=False)
        source = as_checkpoint(file.data, "files")
        stored_file = StoredFile(file.name, before.st_size, before.st_mtime_ns)
        trip = Trip(self._pace, self.settings.concurrency, self._held, self._through)
        try:
            made, _ = copy_file(source, stored_file, dest, new.name, trip)
        except TierFull:
            draft_of(new).unlink(missing_ok=True)
            raise
        self._read_back(new, replace(made, name=new.name))
        descriptor = os.open(new, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:  # by descriptor: a chmod by name could follow a link
            os.fchmod(descriptor, before.st_mode & 0o7777)
            os.utime(descriptor, ns=(before.st_atime_ns, before.st_mtime_ns))
        finally:
            os.close(descriptor)
        return new

    def _read_back(self, new: Path, made: FileSum) -> None:
        paced = 0

        def through(done: int, total: int) -> None:
            nonlocal paced
            self._held()
            self._pace.take(done - paced)
            paced = done

        whole = as_checkpoint(new, "files", Manifest((made,)))
        verdict = verify(whole, "full", through, is_sparing=True)
        if not verdict.is_whole:
            new.unlink(missing_ok=True)
            raise TierError(
                f"{new}: reads back other bytes than were written ({verdict.problems[0]}); the "
                "fast copy stays"
            )

    def say_device(self, before: os.stat_result, folder: Path) -> None:
        if not self._said_device and folder.stat().st_dev == before.st_dev:
            self._said_device = True
            warned = f"{self.fast.url} and {folder} are on one device: no gain in speed or safety"
            self._say(warning=warned)

    def _torn(self, file: BurstFile) -> os.stat_result | None:
        """Return the status of a torn file; None: the file is not torn.  A file counts as torn only
        without a live writing program.  An empty first file of a path is not torn."""
        if file.size_bytes or not self._is_first(file):
            self._await_end(file.data, file)
        torn = self._left_torn(file.data, file)
        return None if torn and not torn.st_size and self._is_first(file) else torn

    def _is_first(self, file: BurstFile) -> bool:
        """Return True if nothing is left of an earlier file of the path."""
        return self._older(file) is None and not is_earlier(file.was)

    def _await_end(self, path: Path, file: BurstFile) -> None:
        """Raise UnfinishedError if the end is missing and a live program may write the end."""
        if is_torn(path, file.home.name) and is_running(self.fast.folder, file.owner):
            raise UnfinishedError(
                f"{file.home}: without its end; stays as it is until that is written, or its run "
                "has ended"
            )

    def _left_torn(self, path: Path, file: BurstFile) -> os.stat_result | None:
        if not is_torn(path, file.home.name):
            return None
        age_s = time.time() - path.stat().st_mtime
        if age_s < self.settings.settle_s:
            self._rest(self.settings.settle_s - max(0.0, age_s))
        with leased(path, self.settings.settle_s) as lease:
            status = path.stat()
            return status if lease.is_free and is_torn(path, file.home.name) else None

    def _give_back(self, file: BurstFile, before: os.stat_result) -> None:
        """Put the earlier file of a torn file back, after the end of the program.  A torn file with
        content is put aside as NAME.torn."""
        older, link = self._older(file), file.beside(NEW)
        if self._gives_back_save(file, older) and is_earlier(file.was):
            older = None  # the save on the tier is incomplete now; that of file.was is complete
            status = file.was.stat()
            back = {file.home.name: (status.st_size, status.st_mtime_ns)}
            mark_put_back(file.home.parent, back)
        if older is not None:
            link.unlink(missing_ok=True)
            link.symlink_to(older.data)
        new = file.was if older is None else link
        try:
            with self._as_it_was(file, before):
                is_there = is_earlier(new) or older is not None
                is_back = bool(_put(new, file)) if is_there else take(file)
        finally:
            link.unlink(missing_ok=True)
        if not is_back:
            return  # the program has changed the path first
        self._saves.rounds.forget(file.name)
        if older is not None:
            unmark(older)
        self._say_damaged(file)
        if before.st_size:
            try:
                self._copy(file, before).replace(torn_of(file))
            except (TierError, OSError):  # no room, or no folder: the file stays and is reported
                unmark(file._replace(is_home=True))
                raise
        fsync_folder(file.home.parent)
        drop(file)

    def _gives_back_save(self, file: BurstFile, older: BurstFile | None) -> bool:
        """Replace the other files of a torn file's save by earlier files; return True if replaced.
        older: the torn file's earlier version on the tier.  Raises TierError, OSError."""
        returned = None
        if older is not None:
            returned = (older.size_bytes or 0, older.mtime_ns)
        elif is_earlier(file.was):
            status = file.was.stat()
            returned = status.st_size, status.st_mtime_ns
        begun_ns = int(file.name[: OWNER.start], 16)
        done = give_back_save(file.home, begun_ns, returned, lead_aside)
        if done:
            said = f"{listed(done)}: of a save that is not whole: what was there before is back"
            self._say(warning="; ".join(filter(None, (self.status.warning, said))))
        return bool(done)

    def _say_damaged(self, file: BurstFile) -> None:
        self._say(damaged=tuple(dict.fromkeys((*self.status.damaged, file.home.as_posix()))))

    def _older(self, file: BurstFile) -> BurstFile | None:
        """Return the newest complete earlier version on the tier."""
        return next((other for other in self._versions(file) if not is_bad(other)), None)

    def _versions(self, file: BurstFile) -> list[BurstFile]:
        return versions_in(file, entries(self.fast.folder, file.home))

    def end_late(self, file: BurstFile, new: Path) -> None:
        """End a copy whose path the program has written again meanwhile.  The copy is the earlier
        file of the path until the newer file counts.  If the link was removed or renamed, the next
        look finds the link."""
        is_newer = file.newest() != file.name
        if is_newer and os.path.lexists(file.was):
            return  # file.was belongs to a save that is home completely: keep until the next save
        if is_newer and was_replaced(file) and not new.is_symlink():
            new.replace(file.was)
            fsync_folder(file.home.parent)
            # Older versions before `file`: after a kill, the newest file left is the earlier file.
            for other in (*self._versions(file), file):
                drop(other)

    def _end_moved(self, file: BurstFile) -> None:
        """End the work on a file that moved to its path during writing: the fast tier was full."""
        self._end_was(file)
        if is_file(file.home):
            self._saves.earlier.came(file.name, file.home, os.path.lexists(file.was))
        _sweep(file.beside(NEW))
        for place in (file.draft, file.way):
            place.unlink(missing_ok=True)
        if os.path.lexists(file.data):  # a delayed program creates the file at this moment
            with suppress(FileExistsError):
                file.way.symlink_to(file.home)

    def _let_go(self, left: Sequence[BurstFile] | None = None) -> None:
        """Remove the earlier files of completely arrived saves.  Raises TierError."""
        is_over = bool(self._over_as) or not any_is_running(self.fast.folder)

        def ask() -> dict[str, str]:
            return {file.name: file.home_at for file in self.backlog()}

        homes = ask() if left is None else {file.name: file.home_at for file in left}
        self._saves.let_go(homes, is_over, ask)

    def _held(self) -> None:
        super()._held()
        self._refinding.drop_meanwhile(self._replaced)

    def _replaced(self) -> list[BurstFile]:
        """Return the files on the tier, if any may have been replaced.  Raises TierError."""
        return self._lying() if any(map(is_marked, ways_on(self.fast.folder))) else []

    # --- for the batches of small files

    def held(self) -> None:
        """Wait until the drain may go on.  Raises Stopped."""
        self._held()

    def take(self, n_bytes: int) -> None:
        """Wait until n_bytes may be copied.  Raises Stopped."""
        self._held()
        self._pace.take(n_bytes)

    def through(self, n_bytes: int) -> None:
        """Report copied bytes."""
        self._through(n_bytes, False)

    def n_drained(self) -> int:
        """Return the number of drained files."""
        return self.status.drained

    def say_batch(self, n_files: int, n_bytes: int) -> None:
        """Report the start of a batch."""
        current = f"{n_files} files"
        self._say(state="draining", current=current, done_bytes=0, total_bytes=n_bytes)

    def say_no_error(self) -> None:
        """Report success of the last attempt."""
        self._say(error="")

    def _warn(self, text: str) -> None:
        self._say(warning="; ".join(filter(None, (self.status.warning, text))))

    def _backlog(self, left: Sequence[BurstFile]) -> None:
        self._say(
            backlog=tuple(file.home_at for file in left),
            backlog_bytes=sum(file.size_bytes or 0 for file in left),
            at_risk_s=oldest_age_s(left),
        )
