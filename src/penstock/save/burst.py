"""Copy checkpoints, written by a recorded program to a fast tier, to the program's own paths.

    FAST/burst/data/ID-NAME    the file, created by native/burst.c
    FAST/burst/home/ID-NAME    a link to the program's path; ID-NAME.penstock-home when the file has
                               arrived there, or when the program removes the path: then the file in
                               data/ may be removed as soon as no path leads there
    FAST/burst/draft/ID-NAME   a link to the draft beside the program's path; for many small files
                               see drafts.py
    the program's path         a link to the file on the tier, until the file arrives

The names on the tier are the whole state of the work: after any end of this process, of the program
or of the machine, the next look continues.  The module knows links and files, no framework: a file
is torn only if the file's own format shows so.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from penstock.errors import PenstockError, SaveError, TierError, TierFull
from penstock.places.stores import (
    LocalStore,
    StoredFile,
    draft_of,
    fsync_folder,
)
from penstock.recording import recorder
from penstock.safe import drafts
from penstock.save import copier, crowd
from penstock.save.batch import (
    MOST_BYTES,
    MOST_FILES,
    SMALL_BYTES,
    Copy,
    Syncs,
    copy_together,
    read_all,
)
from penstock.save.beforehand import Beforehand
from penstock.save.burstfile import (
    FOLDER,
    ID_LETTERS,
    NEW,
    OWNER,
    BurstFile,
    _give_way,
    _link,
    _put,
    _sweep,
    _target,
    as_checkpoint,
    change,
    drop,
    drop_data,
    entries,
    hidden_of,
    is_that,
    is_torn,
    mark_home,
    may_be_torn,
    merge_marks,
    put_opened,
    rename_home,
    sweep_drafts,
    sweep_noted,
    take,
    torn_of,
    unmark,
    was_put,
    was_replaced,
    ways_on,
)
from penstock.save.burstmend import led_elsewhere, listed, search
from penstock.save.commit import claim, exchange
from penstock.save.copying import Trip, copy_file
from penstock.save.crowd import Act, Crowd, is_for_crowd
from penstock.save.earlier import (
    EarlierFolders,
    give_back_save,
    is_earlier,
    was_of,
)
from penstock.save.lease import Lease, leased
from penstock.save.manifest import FileSum, Manifest
from penstock.save.many import (
    end_many,
    end_placed,
    names_in,
    note_many,
    note_placed,
)
from penstock.save.mixture import (
    Mixture,
    forget_mixtures,
    is_mixed,
    mark_mixture,
    mixture_of,
)
from penstock.save.neighbours import (
    DRAINED,
    Heard,
    any_is_running,
    forget_unheard,
    is_heard,
    is_running,
    tell,
)
from penstock.save.rounds import Rounds
from penstock.save.verify import verify
from penstock.save.working import (
    LEAST_DELAY_S,
    LOOK_S,
    LOOK_SHARE,
    MOST_BLIND_S,
    MOST_DELAY_S,
    DrainSettings,
    DrainStatus,
    Working,
    sentence,
)

if TYPE_CHECKING:
    from penstock.save.burstfile import Hidden

__all__ = ["PATTERNS", "Burst", "prepare"]

# Files come from private folders, too.  Who follows a program's link to a file needs no list of the
# names, which nobody guesses.
MODES = {"": 0o711, "data": 0o711, "home": 0o700, "draft": 0o700}


# What torch, safetensors, Lightning, Keras, TensorFlow, DeepSpeed and DCP write, also under the
# name that it has until it is finished; and what lies in folders that trainers name so.
PATTERNS = (
    *("*.pt", "*.pt.*", "*.pth", "*.pth.*", "*.ckpt", "*.ckpt.*", "*.bin", "*.bin.*"),
    *("*.safetensors", "*.safetensors.*", ".tmp??????", "*.npz", "*.npz.*"),
    *("*.keras", "*.weights.h5", "*.distcp", "part-?????-of-?????"),
    *("*.data-?????-of-?????", "*.data-?????-of-?????.*"),
    *("checkpoint-*/", "tmp-checkpoint-*/", "global_step*/", "*.ckpt/"),
)


SEARCH_AGAIN_S = 60.0
DEAR_S = 10 * LOOK_S  # looks that take half a second, at their share of the time, are so far apart


# A program that makes so many small files in a row makes them faster while the drain waits: both
# need the locks of one folder, and the CPU.  The save ends when no file came for GROWN_S.
MANY_GROWING, GROWN_S, MOST_GROWING_S = 64, LOOK_S, 10.0
FAILURES = (copier.DIFFERS, copier.CHANGED, copier.FAILED)


def prepare(fast: str | os.PathLike[str]) -> Path:
    """The folder that a recorded program's checkpoints go to, made if it is not there.

    Raises TierError: the tier is missing, or cannot be written.
    """
    tier = Path(os.path.realpath(fast))
    if not tier.is_dir():
        raise TierError(f"{tier}: no such folder; make a folder on a fast disk: mkdir -p {tier}")
    folder = tier / FOLDER
    try:
        for name, mode in MODES.items():
            drafts.own_folder(folder / name, mode)
        with suppress(FileExistsError):
            drafts.create(folder / "data" / f".probe-{os.getpid()}").close()
        (folder / "data" / f".probe-{os.getpid()}").unlink()
    except OSError as error:
        raise TierError(
            f"{tier}: cannot be written: {error.strerror}; name a folder of your own"
        ) from error
    if len(os.fsencode(folder)) > 1000:
        raise TierError(f"{folder}: too long a name for a fast tier; choose a shorter one")
    return folder


class _AbsentError(TierError):
    """The folder of a file is absent: the file system was unmounted or does not answer."""


class _UnfinishedError(TierError):
    """Of a file whose end may come yet: the next look asks again."""


class Burst(Working):
    """The drain of one fast tier, in this process: each file to its own path.  Use as a context.

    owner: the run whose files are told of in its log, as launch.burst_owner() says it; "": all of
    them.  is_patient: while another process drains this tier, which brings home whatever lies
    there, watch() waits: until that one has ended, or the owner's files are home.
    Raises SaveError: another process drains this tier; TierError: nothing was ever there.
    """

    def __init__(
        self,
        fast: str | os.PathLike[str],
        settings: DrainSettings | None = None,
        *,
        share: Callable[[], float | None] | None = None,
        told: Callable[[DrainStatus], None] = lambda status: None,
        clock: Callable[[], float] = time.monotonic,
        owner: str = "",
        is_patient: bool = False,
    ) -> None:
        super().__init__(os.path.realpath(fast), settings, share, told, clock)
        ways_on(self.fast.folder)
        self._owner, self._is_patient, self._has_turn = owner, is_patient, True
        self._heard = Heard(self.fast.folder, owner) if owner and is_patient else None
        self._over_as = (
            ""  # as a file would be called that was made when there was nothing to follow
        )
        self._again: dict[str, tuple[float, float, str]] = {}  # name: not before, delay, why
        self._searched_s: dict[str, float] = {}
        self._look_again_s, self._failed = -math.inf, dict[str, str]()  # of a look that is dear
        self._copied: set[str] = set()  # names of the files being copied
        self._rewritten: set[str] = set()  # paths of several files on the tier, at the last look
        self._dropping, self._drop_again_s = threading.Lock(), -math.inf
        # Committed, and dropped at the next look: as it was on the tier, and as it is at its path.
        self._gone: dict[str, tuple[os.stat_result, os.stat_result]] = {}
        self._homes: dict[Path, None] = {}  # folders to which this has brought something
        self._said_device = False
        self._syncs = Syncs()
        self._is_following = False  # a program that may write more
        self._has_growing = False  # at the last look: a save of many small files
        self._devices: dict[Path, int] = {}  # device by folder in which a link was seen
        self._rounds = Rounds(self.fast.folder)
        self._beforehand = Beforehand(self._rounds, self.fast.folder)
        self._mixtures: list[Mixture] = []  # marked by this drain
        self._earlier = EarlierFolders(self.fast.folder / FOLDER, clock, self._rounds.is_ended)

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
        with suppress(TierError, OSError):  # else the next drain does it
            if self._has_turn:
                self._forget_committed()
            left = self.backlog()
            self._backlog(left)
            ours = [one for one in left if self._is_ours(one)]
            n_bytes = sum(one.size_bytes or 0 for one in ours)
            recorder.note("drain left", f"{len(ours)} {n_bytes} {_age_s(ours):.3f}")
        with suppress(OSError):
            said = led_elsewhere(self._homes, self.fast.folder, self._owner, deepest=0)
            self._say(warning="; ".join(filter(None, (self.status.warning, *said))))
        if self._heard is not None:
            self._heard.close()
        super().__exit__(*error)

    def _publish(self, is_last: bool = False) -> None:
        if self._has_turn:  # else the file is another drain's
            super()._publish(is_last)

    # --- two runs, one tier

    def watch(self, is_over: Callable[[], bool], grace_s: float = math.inf) -> list[str]:
        self._is_following = True

        def has_ended() -> bool:
            if not self._over_as and is_over():
                self._over_as = f"{time.time_ns():016x}"
            return bool(self._over_as)

        if not self._has_turn and not self._awaits_turn(has_ended, grace_s):
            return [
                f"{one.home}: another process drains {self.fast.url}, and has not brought it"
                for one in self._awaited()
            ]
        failed = super().watch(has_ended, grace_s)
        with suppress(OSError, TierError):  # else the next drain does it
            self._forget_committed()
            if self._owed():  # what came home at last was written to in that moment
                failed = super().watch(has_ended, grace_s)
            self._let_go()
        self._settle()
        return [*failed, *self._said_unclaimed()]

    def _is_idle(self, failed: dict[str, str]) -> bool:
        return super()._is_idle(failed) and not self._has_growing

    def _settle(self) -> None:
        """What was replaced or removed a moment ago goes before this ends.  Raises Stopped."""
        end_s = self._clock() + 2 * LOOK_S
        with suppress(OSError, TierError):  # else the next drain does it
            while self._clock() < end_s and any(one.is_home for one in self._astray()):
                self._rest(LOOK_S / 4)
                found = self._lying()
                self._find_again(found, _linked(found))

    def _awaits_turn(self, is_over: Callable[[], bool], grace_s: float) -> bool:
        """False: what was waited for is home, or grace_s after is_over() it is not.  Raises
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
                with suppress(TierError):  # it may come back
                    if not self._awaited():
                        return False
                if self._clock() - over_s >= grace_s:
                    return False
            self._rest(LOOK_S / 4)

    def _awaited(self) -> list[BurstFile]:
        """Files of the owner that the other drain has under way: one that is home is told of before
        it is forgotten on the tier.  Raises TierError."""
        ours = [one for one in entries(self.fast.folder) if self._is_ours(one)]
        return [one for one in ours if self._is_early(one) and os.path.lexists(one.home)]

    def _owed(self) -> list[BurstFile]:
        """What other runs write from now on does not keep this one, nor what the drain of another
        run waits for."""
        return self._of_owed(self.backlog())

    def _of_owed(self, left: list[BurstFile]) -> list[BurstFile]:
        if not self._over_as:
            return left
        return [
            one
            for one in left
            if self._is_ours(one)
            or (self._is_early(one) and not is_heard(self.fast.folder, one.owner))
        ]

    def _is_early(self, one: BurstFile) -> bool:
        """Made before what is followed has ended."""
        return not self._over_as or one.name < self._over_as

    def _is_ours(self, one: BurstFile) -> bool:
        return self._owner in ("", one.owner)

    # --- what there is to do

    def backlog(self) -> list[BurstFile]:
        """Files that are on the fast tier only, newest first.  Raises TierError."""
        return [one for one in entries(self.fast.folder, None, self._gone) if self._is_due(one)]

    def _is_due(self, one: BurstFile, linked: Mapping[str, BurstFile] | None = None) -> bool:
        """linked: as _linked() says it, where that is known."""
        if one.name in self._gone:
            return False
        if one.size_bytes is None:
            return _has_moved(one)
        is_linked = one.is_linked() if linked is None else linked.get(one.home_at) is one
        return is_linked or (not one.is_home and bool(self._absence(one)))

    def _absence(self, one: BurstFile) -> str:
        """Return why a path cannot be checked for a link; empty: the path can be checked.  A
        program has not removed a folder if the nearest existing parent is on another file system
        than the folder was."""
        folder = one.home.parent
        try:
            device = folder.stat().st_dev
        except (FileNotFoundError, NotADirectoryError):
            was_on = self._devices.get(folder)
            if was_on is not None and _root_of(one.home).stat().st_dev != was_on:
                return f"{folder}: is not there: is its file system mounted?"
            return ""
        except OSError as error:
            return f"{folder}: {error.strerror}"
        if one.is_linked():
            self._devices.setdefault(folder, device)
        elif device != self._devices.get(folder, device):
            return f"{folder}: is on another file system than before: is that mounted?"
        return ""

    def unclaimed(self) -> list[BurstFile]:
        """Files to which no path leads any more.  Raises TierError."""
        return [one for one in self._astray() if not one.is_home]

    def _astray(self) -> list[BurstFile]:
        found = self._lying()
        return [one for one in found if not self._is_due(one) and one.name not in self._gone]

    def _lying(self) -> list[BurstFile]:
        """What lies on the tier itself."""
        return [one for one in entries(self.fast.folder) if one.size_bytes is not None]

    def once(self) -> list[str]:
        """Drains all that nobody writes to; returns what could not be drained, with the reason, and
        what no path leads to.  Raises Stopped, TierError."""
        failed: dict[str, str] = {}
        for attempt in range(self.settings.tries):
            self._look_again_s = -math.inf
            failed = self._round()
            with suppress(OSError):  # the next look does it
                self._forget_committed()
            left = self.backlog()
            self._backlog(left)
            self._let_go(left)
            if not (failed or self.backlog() or self._astray()):
                break
            if attempt + 1 < self.settings.tries:
                self._rest(min(MOST_DELAY_S, LEAST_DELAY_S * (1 if not failed else 2**attempt)))
                self._again.clear()
        failed |= {
            one.home.as_posix(): "still being written"
            for one in self.backlog()
            if one.home.as_posix() not in failed
        }
        return [
            *(sentence(name, why) for name, why in failed.items()),
            *self._said_unclaimed(),
        ]

    def _said_unclaimed(self) -> list[str]:
        stays = "no path leads there any more; it stays, for you to move or remove"
        gone = "its folder is not there: mount its file system, and drain again; it stays"
        ours = [one for one in self.unclaimed() if self._is_ours(one)]
        return [
            f"{one.home}: lies in {one.data}, and {stays if one.home.parent.is_dir() else gone}"
            for one in ours
        ]

    def _round(self) -> dict[str, str]:
        if self._clock() < self._look_again_s and not self._over_as:
            return self._failed
        failed: dict[str, str] = {}
        look = self._look
        while True:
            begun_s = self._clock()
            left = look()
            self._rounds.saw(left, are_all=False)
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
        """Yield the files that are due, small files in batches and other files singly.  failed:
        receives the reason for each file that is not due."""
        small: list[BurstFile] = []
        n_bytes = 0
        self._has_growing = self._is_growing(left)
        if self._has_growing:
            left = [one for one in left if one.size_bytes is None or one.size_bytes > SMALL_BYTES]
        # With a bandwidth limit, bound the batch: a file is renamed only when the whole batch is
        # copied.
        most_bytes = min(MOST_BYTES, self.settings.limit_bps or MOST_BYTES)
        most_files = crowd.MOST_FILES if copier.is_built() else MOST_FILES
        for one in left:
            if not self._is_time(one, failed):
                continue
            size_bytes = one.size_bytes
            if size_bytes is None or size_bytes > SMALL_BYTES:
                yield [one]
                continue
            small.append(one)
            n_bytes += size_bytes
            if len(small) >= most_files or n_bytes >= most_bytes:
                yield small
                small, n_bytes = [], 0
        if small:
            yield small

    def _is_growing(self, left: Sequence[BurstFile]) -> bool:
        """Return True while a program that is being followed makes a save of many small files."""
        if not self._is_following or self._over_as or len(left) < MANY_GROWING:
            return False
        small = [
            one for one in left if one.size_bytes is not None and one.size_bytes <= SMALL_BYTES
        ]
        times_s = sorted(one.mtime_ns / 1e9 for one in small)
        now_s = time.time()
        is_growing = len(small) >= MANY_GROWING and 0 <= now_s - times_s[-MANY_GROWING] < GROWN_S
        if not is_growing or now_s - times_s[0] > MOST_GROWING_S:
            return False
        free = os.statvfs(self.fast.folder)
        return sum(one.size_bytes or 0 for one in small) < free.f_bavail * free.f_frsize

    def _pause_after(self, begun_s: float) -> float:
        return min(MOST_BLIND_S, (self._clock() - begun_s) / LOOK_SHARE)

    def _look(self) -> list[BurstFile]:
        """Does what needs no copy; what does.  Raises TierError."""
        folder = self.fast.folder
        try:
            self._forget_committed()
            sweep_drafts(folder / FOLDER)
            merge_marks(folder / FOLDER)
            found = entries(folder)
            self._rounds.saw(found)
            with suppress(TierError):  # a full tier, which only the drain can empty
                self._rounds.keep()
            linked = _linked(found)
            self._rewritten = _repeated(one.home_at for one in found)
            for one in {one.folder_at: one for one in linked.values()}.values():
                if one.home.parent not in self._devices:
                    self._absence(one)
            if self._find_again([one for one in found if one.size_bytes is not None], linked):
                return self.backlog()
        except OSError as error:  # a program changes names beside us: the next look finds another
            raise TierError(str(error)) from error
        return [one for one in found if self._is_due(one, linked)]

    def _is_time(self, one: BurstFile, failed: dict[str, str]) -> bool:
        """Whether an attempt that failed is long enough ago; failed: is told if not."""
        name = one.home_at
        if name not in self._again:
            return name not in failed
        not_before_s, _, why = self._again[name]
        if self._clock() < not_before_s:
            failed[name] = why
        return name not in failed

    def _try(self, batch: Sequence[BurstFile], failed: dict[str, str]) -> bool:
        """Drain a batch; return False if no file of the batch may go now.  failed: receives the
        reason for each file that could not be drained."""
        if len(batch) > 1:
            present = self._present(batch, failed)
            if is_for_crowd([one.folder_at for one in present], self._syncs):
                return self._drain_crowd(present, failed)
            tried = [
                self._drain_together(present[start : start + MOST_FILES], failed)
                for start in range(0, len(present), MOST_FILES)
            ]
            return any(tried)
        if not self._may_go(batch[0], failed):
            return False
        with self._trying(batch[0], failed):
            self._drain(batch[0])
        return True

    @contextmanager
    def _trying(self, one: BurstFile, failed: dict[str, str]) -> Iterator[None]:
        name = one.home.as_posix()
        try:
            yield
            self._again.pop(name, None)
            self._say(error="")
        except _UnfinishedError as error:
            failed[name] = str(error)
        except (PenstockError, OSError) as error:
            failed[name] = why = str(error)
            delay_s = self._again.get(name, (-1.0, LEAST_DELAY_S, ""))[1]
            again_s = self._clock() + delay_s
            self._again[name] = (again_s, min(MOST_DELAY_S, 2 * delay_s), why)
            reason = _reason_of(error) or self.status.reason
            self._say(error=sentence(name, why), reason=reason)

    def _may_go(self, one: BurstFile, failed: dict[str, str]) -> bool:
        """failed: what cannot go in this round, and why; is told of it."""
        name = one.home.as_posix()
        if name in failed:
            return False
        try:
            path = one.home if one.size_bytes is None else one.data
            with leased(path, self.settings.settle_s) as lease:
                return lease.is_free
        except (FileNotFoundError, NotADirectoryError):
            return one.size_bytes is None  # its path is gone: nothing is left to wait for
        except OSError as error:
            failed[name] = str(error)
            return False

    # --- one of them

    def _drain(self, one: BurstFile) -> None:
        before = self._begun(one)
        if before is None:
            return
        self._say(state="draining", current=one.home.name, done_bytes=0, total_bytes=before.st_size)
        with recorder.span("drain", self.status.drained):
            try:
                new = self._copy(one, before)
            except (TierError, OSError):
                if one.is_linked() or self._absence(one):
                    raise
                return  # removed, or its folder has another name: the next look finds it there
            try:
                self._beforehand.mark([one])
                put = self._placed(one, new, before)
                if put is None:
                    return
                fsync_folder(one.home.parent)
            finally:
                new.unlink(missing_ok=True)
        self._arrived(one, before, put)

    def _drain_together(self, batch: Sequence[BurstFile], failed: dict[str, str]) -> bool:
        """Drain each file of a batch as _drain() does, with the waits combined.  Return False if a
        process writes to each of the files."""
        ones = {one.name: one for one in batch}
        copies = self._read_together(batch, failed)
        for copy in copies.values():
            if copy.error is None and not copy.is_plain:
                self._try([ones[copy.name]], failed)
        plain = [copy for copy in copies.values() if copy.status is not None and copy.is_plain]
        self._say_batch(plain)
        try:
            self._beforehand.mark([ones[copy.name] for copy in plain])
        except TierError as error:
            for copy in plain:
                self._fail_copy(ones[copy.name], error, failed)
            return True
        self._copy_plain(plain, ones, failed)
        for copy in copies.values():
            if copy.error is not None:
                self._fail_copy(ones[copy.name], copy.error, failed)
        return any(copy.status is not None or copy.error is not None for copy in copies.values())

    def _say_batch(self, copies: Sequence[Copy]) -> None:
        total = sum(copy.status.st_size for copy in copies if copy.status is not None)
        current = f"{len(copies)} files"
        self._say(state="draining", current=current, done_bytes=0, total_bytes=total)

    def _copy_plain(
        self, plain: Sequence[Copy], ones: Mapping[str, BurstFile], failed: dict[str, str]
    ) -> None:
        """Copy the files of a batch that need no more than a copy."""
        notes = self._note_drafts([ones[copy.name] for copy in plain])
        self._copied = {copy.name for copy in plain}

        def place(copy: Copy, descriptor: int) -> os.stat_result | None:
            assert copy.status is not None
            return self._placed(ones[copy.name], copy.new, copy.status, descriptor)

        try:
            with recorder.span("drain", self.status.drained):
                copy_together(plain, self._before_copies, place, self._syncs)
        finally:  # also after a stop of the drain: the placed files have arrived
            self._copied = set()
            placed = [copy for copy in plain if copy.put is not None]
            durable = self._synced(placed, ones, failed)
            self._arrived_together([(ones[name], copy) for name, copy in durable.items()], failed)
            end_many(f"{self.fast.folder}/{FOLDER}/draft", notes)

    def _present(self, batch: Sequence[BurstFile], failed: dict[str, str]) -> list[BurstFile]:
        """Return the files whose folder is not absent."""
        absent: dict[str, str] = {}
        present = []
        for one in batch:
            folder = one.folder_at
            if folder not in absent:
                absent[folder] = self._absence(one)
            if why := absent[folder]:
                with self._trying(one, failed):
                    raise _AbsentError(why)
            else:
                present.append(one)
        return present

    def _drain_crowd(self, batch: Sequence[BurstFile], failed: dict[str, str]) -> bool:
        """As _drain_together(), by the native copier: hundreds of files in a call."""
        total = sum(one.size_bytes or 0 for one in batch)
        current = f"{len(batch)} files"
        self._say(state="draining", current=current, done_bytes=0, total_bytes=total)

        def before(n_bytes: int) -> None:
            self._held()
            self._pace.take(n_bytes)
            self._through(0, False)

        try:
            self._beforehand.mark(batch)
        except TierError as error:
            for one in batch:
                self._fail_copy(one, error, failed)
            return True
        notes = self._note_drafts(batch)
        self._copied = {one.name for one in batch}
        self._drop_again_s = self._clock() + LOOK_S  # the look has just done it
        torn: list[int] = []
        with Crowd(f"{self.fast.folder}/{FOLDER}", batch, self.settings.settle_s, before) as many:
            try:
                with recorder.span("drain", self.status.drained):
                    torn = many.copy(is_torn)
                    many.place(self._syncs, self._act(batch))
                    self._end_odd(batch, many, failed)
            finally:  # also after a stop of the drain: the placed files have arrived
                self._copied = set()
                self._arrived_crowd(batch, many, failed)
                end_many(f"{self.fast.folder}/{FOLDER}/draft", notes)
            for at in (at for state in FAILURES for at in many.numbers(state)):
                why = many.error(at, batch[at].beside_at(NEW))
                if why is not None:
                    self._fail_copy(batch[at], why, failed)
            is_tried = any(state != copier.BUSY for state in many.states())
        for at in torn:
            self._try([batch[at]], failed)
        return is_tried

    def _act(self, batch: Sequence[BurstFile]) -> Act:
        def give_way(at: int, ours: int) -> None:
            one = batch[at]
            _give_way(one.beside(NEW), one, one.home, ours)

        def lead_back(at: int, put: os.stat_result) -> None:
            _link(batch[at], put)
            batch[at].beside(NEW).unlink(missing_ok=True)

        return Act(give_way, lead_back)

    def _end_odd(self, batch: Sequence[BurstFile], many: Crowd, failed: dict[str, str]) -> None:
        """End the files of a batch whose path has changed, or cannot be exchanged."""
        for at in many.numbers(copier.LATE):
            with self._trying(batch[at], failed):
                self._is_late(batch[at], batch[at].beside(NEW))
        for at in many.numbers(copier.NO_EXCHANGE):
            one = batch[at]
            try:
                put = self._placed(one, one.beside_at(NEW), many.before(at))
            except (TierError, OSError) as error:
                self._fail_copy(one, error, failed)
                continue
            many.set_state(at, copier.LATE if put is None else copier.PLACED)

    def _arrived_crowd(
        self, batch: Sequence[BurstFile], many: Crowd, failed: dict[str, str]
    ) -> None:
        """Record that the placed files are at their paths for good, and remove them from the
        tier."""
        exchanged = many.numbers(copier.PLACED)
        if not exchanged:
            return
        note = self._note_placed([batch[at] for at in exchanged])
        many.clear()
        placed = many.numbers(copier.PLACED)
        for at in set(exchanged) - set(placed):  # the next look syncs the folder again
            mark_home(batch[at])
            error = many.error(at, batch[at].home_at)
            with self._trying(batch[at], failed):
                assert error is not None
                raise error
        hidden = hidden_of(batch[at].folder_at for at in placed)
        sizes, times_ns = many.size_bytes, many.mtime_ns
        plain, odd, n_bytes, now_s = [], [], 0, time.time()
        for at in placed:
            one = batch[at]
            of_folder = hidden.get(one.folder_at)
            if of_folder is None or of_folder.has_any(one) or one.home_at in self._rewritten:
                odd.append(at)
                continue
            folder, _, base = one.home_at.rpartition("/")
            self._earlier.came_at(one.name, _folder(folder), base, False)
            self._tell_arrival(one, sizes[at], max(0.0, now_s - times_ns[at] / 1e9))
            plain.append(at)
        for at in odd:
            one = batch[at]
            try:
                self._note_arrival(one, many.before(at), many.put(at), hidden.get(one.folder_at))
            except (PenstockError, OSError) as error:
                with self._trying(one, failed):
                    raise error
        self._homes |= dict.fromkeys(_folder(folder) for folder in hidden)
        kept = many.drop(plain)
        for at in (*kept, *odd):
            mark_home(batch[at])
        for at in kept:  # the next look sees why
            self._gone[batch[at].name] = many.before(at), many.put(at)
        end_placed(note)
        if self._again:
            for at in placed:
                self._again.pop(batch[at].home_at, None)
        if placed:
            n_bytes = sum(map(sizes.__getitem__, placed))
            self._through(n_bytes, False)
            self._say_drained(len(placed), n_bytes, batch[placed[-1]])
            self._say(error="")

    def _note_placed(self, placed: Sequence[BurstFile]) -> str:
        """Note on the tier that files are at their paths, for the drain after a killed drain; on a
        full tier mark each file instead.  Return the path of the note."""
        try:
            return note_placed(
                f"{self.fast.folder}/{FOLDER}/draft", [one.name for one in placed]
            )  # fmt: skip
        except OSError:
            for one in placed:
                mark_home(one)
            return ""

    def _read_together(self, batch: Sequence[BurstFile], failed: dict[str, str]) -> dict[str, Copy]:
        """Read the files of a batch."""
        homes = {one.name: one.home_at for one in batch}
        copies = [
            Copy(one.name, one.data_at, one.beside_at(NEW), one.folder_at) for one in batch
        ]  # fmt: skip

        def is_plain(copy: Copy, data: bytes) -> bool:
            home = homes[copy.name]
            name = home.rpartition("/")[2]
            return not (may_be_torn(data, name) and is_torn(Path(copy.source), name))

        read_all(copies, lambda part: self._held(), self.settings.settle_s, is_plain)
        return {copy.name: copy for copy in copies}

    def _note_drafts(self, batch: Sequence[BurstFile]) -> list[str]:
        """Note on the tier the folders of the drafts, so that the next drain can sweep drafts."""
        folder = f"{self.fast.folder}/{FOLDER}/draft"
        of_folder: dict[str, list[str]] = {}
        noted: set[str] = set()
        with suppress(OSError):
            noted = set(names_in(folder))
        for one in batch:
            of_folder.setdefault(one.folder_at, []).append(one.name)
            if one.name in noted:  # by a drain that copied the file alone
                sweep_noted(one.draft, one.beside_at(NEW))
        for at in of_folder:
            with suppress(OSError):
                self._say_device(self.fast.folder.stat(), Path(at))
        return note_many(folder, of_folder)

    def _before_copies(self, copies: Sequence[Copy]) -> None:
        """Run the checks due before files are written and before files are read back.  Raises
        Stopped."""
        self._held()
        self._pace.take(sum(copy.status.st_size for copy in copies if copy.status is not None))
        self._through(0, False)

    def _fail_copy(self, one: BurstFile, error: Exception, failed: dict[str, str]) -> None:
        with self._trying(one, failed):
            if one.is_linked() or self._absence(one):
                raise error
            # Else the link was removed, or the folder was renamed: the next look finds the link.

    def _synced(
        self, placed: Sequence[Copy], ones: Mapping[str, BurstFile], failed: dict[str, str]
    ) -> dict[str, Copy]:
        """Sync the folders of the placed files.  Return the files whose folder is synced."""
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
                    with self._trying(ones[copy.name], failed):
                        raise error
        return done

    def _begun(self, one: BurstFile) -> os.stat_result | None:
        """Return the file's status before the copy; None: nothing to copy.  Raises TierError,
        OSError."""
        if one.size_bytes is None:
            if not os.path.lexists(one.data):  # else the program created the file during the look
                self._end_moved(one)
            return None
        if why := self._absence(one):
            raise _AbsentError(why)
        torn = self._torn(one)
        if not one.is_linked():
            return None  # the torn check takes time: the path was removed or renamed
        if torn is not None:
            self._give_back(one, torn)
            return None
        return one.data.stat()

    def _placed(
        self, one: BurstFile, new: str | Path, before: os.stat_result, descriptor: int = -1
    ) -> os.stat_result | None:
        """Put the copy at the file's path.  Return the copy's status; None: the program changed the
        path first.  descriptor: of the copy, where it is open.  Raises TierError, OSError."""
        with self._as_it_was(one, before) as lease:
            is_open = descriptor >= 0
            put = put_opened(os.fspath(new), one, descriptor) if is_open else _put(Path(new), one)
            if put is not None and lease.is_wanted():
                # A process that opened the file through the link still writes to the tier: no
                # process may read or continue the copy at the path.
                _link(replace(one, is_home=True), put)
                raise _written_again(one)
        if put is None:
            self._is_late(one, Path(new))
        return put

    def _arrived(self, one: BurstFile, before: os.stat_result, put: os.stat_result) -> None:
        """Record that a file is at its path for good.  Raises TierError, OSError."""
        self._note_arrival(one, before, put)
        self._say_drained(1, before.st_size, one)

    def _arrived_together(
        self, done: Sequence[tuple[BurstFile, Copy]], failed: dict[str, str]
    ) -> None:
        """Record as _arrived() does for each file of a batch."""
        hidden = hidden_of(one.folder_at for one, _ in done)
        n_bytes = 0
        for one, copy in done:
            assert copy.status is not None and copy.put is not None  # noqa: PT018
            try:
                self._note_arrival(one, copy.status, copy.put, hidden.get(one.folder_at))
                n_bytes += copy.status.st_size
                self._again.pop(one.home_at, None)
            except (PenstockError, OSError) as error:
                with self._trying(one, failed):
                    raise error
        if done:
            self._through(n_bytes, False)
            self._say_drained(len(done), n_bytes, done[-1][0])
            self._say(error="")

    def _say_drained(self, n_files: int, n_bytes: int, last: BurstFile) -> None:
        self._say(
            drained=self.status.drained + n_files,
            drained_bytes=self.status.drained_bytes + n_bytes,
            last=last.home_at,
        )

    def _note_arrival(
        self,
        one: BurstFile,
        before: os.stat_result,
        put: os.stat_result,
        hidden: Hidden | None = None,
    ) -> None:
        has_was = False
        if hidden is None or hidden.has_was(one):
            self._forget_was(one)
            has_was = os.path.lexists(one.was)
        folder, base = _folder(one.folder_at), one.home_at.rpartition("/")[2]
        self._earlier.came_at(one.name, folder, base, has_was)
        self._gone[one.name] = (before, put)
        self._homes[folder] = None
        self._tell_arrival(one, before.st_size, max(0.0, time.time() - before.st_mtime))

    def _tell_arrival(self, one: BurstFile, size_bytes: int, lag_s: float) -> None:
        said = f"{size_bytes} {lag_s:.6f} {one.home_at}"
        if self._is_ours(one):
            recorder.note(DRAINED, said)
        else:
            tell(self.fast.folder, one.owner, said)

    @contextmanager
    def _as_it_was(self, one: BurstFile, before: os.stat_result) -> Iterator[Lease]:
        """In the block nobody writes to a file.  Raises TierError: somebody does, or has."""
        with leased(one.data_at, self.settings.settle_s) as lease:
            if not lease.is_free or not _is_as_before(os.stat(one.data_at), before):  # noqa: PTH116
                raise _written_again(one)
            yield lease

    def _let_go(self, left: Sequence[BurstFile] | None = None) -> None:
        """Remove the earlier files of saves that are home completely.  Raises TierError."""
        is_over = bool(self._over_as) or not any_is_running(self.fast.folder)

        def ask() -> dict[str, str]:
            return {one.name: one.home_at for one in self.backlog()}

        homes = ask() if left is None else {one.name: one.home_at for one in left}
        with suppress(TierError):  # the next look does it
            if is_over:
                self._rounds.learn(self.settings.saves)
                forget_mixtures(map(Path, self._rounds.ended()))
                self._mark_unended(set(homes.values()))
            self._beforehand.end(set(homes.values()), is_over)
        self._earlier.let_go(homes, is_over, ask)

    def _mark_unended(self, left: Container[str]) -> None:
        """Mark the folders of a save whose program has ended between two files.  left: paths that
        are links to the tier.  Raises TierError."""
        for family, again, missing in self._rounds.unended():
            if any(path in left for path in (*again, *missing)):
                continue
            paths = [Path(path) for path in (*again, *missing)]
            mixture = mixture_of(again, missing)
            if mixture is None:  # the save before is back, or a file was removed
                if not is_mixed(paths):
                    self._rounds.give_up(family)
                continue
            mark_mixture(mixture)
            if mixture not in self._mixtures:
                self._mixtures.append(mixture)
                folder = os.path.commonpath(mixture.folders)
                said = (
                    f"{folder}: {mixture.why(Path(folder))}; `penstock save recover "
                    f"{self.fast.folder} {folder}` puts back the save before"
                )
                self._say(warning="; ".join(filter(None, (self.status.warning, said))))

    def _forget_was(self, one: BurstFile, is_dead: bool = False) -> None:
        """Keep the earlier file of a path until the whole save is home.  is_dead: the program was
        killed before the program made the link."""
        if os.path.lexists(one.was):
            is_link = _target(one.was) == one.data_at  # see was_put()
            if is_link or (is_dead and _are_one_file(one.was, one.home)):
                one.was.unlink(missing_ok=True)
            else:
                self._earlier.keep(one.home)
        # Of the name under which it was made, if that was another one and is nobody's now.
        made_as = one.home.with_name(one.name[ID_LETTERS:])
        if os.path.lexists(was_of(made_as)) and not os.path.lexists(made_as):
            was_of(made_as).unlink(missing_ok=True)

    def _end_was(self, one: BurstFile, is_dead: bool = False) -> None:
        """Of a path at which the file itself is, by a drain that was killed since, or by a program
        on a full tier: what was there before goes, or comes back where the file is torn.  Raises
        TierError: the file is being written."""
        if _is_file(one.home):
            if _is_file(one.was) and self._has_put_back(one):
                return
            _fsync_file(one.home)
        self._forget_was(one, is_dead)

    def _has_put_back(self, one: BurstFile) -> bool:
        """As _end_was(): whether what was there before has come back."""
        self._await_end(one.home, one)
        torn = self._left_torn(one.home, one)
        with leased(one.home, self.settings.settle_s) as lease:
            is_bad = is_torn(one.home, one.home.name)
            if not lease.is_free:
                raise _written_again(one)
            if not is_bad:
                return False
            if torn is None or not _is_as_before(one.home.lstat(), torn):
                raise _written_again(one)
            aside, found = torn_of(one), torn
            self._gives_back_save(one, None)
            aside.unlink(missing_ok=True)
            if torn.st_size:
                aside.hardlink_to(one.home)
            if not change(one.was, one, lambda path: is_that(path, found)):
                aside.unlink(missing_ok=True)
                raise _written_again(one)
            one.was.unlink(missing_ok=True)
            self._say_damaged(one)
        return True

    def _copy(self, one: BurstFile, before: os.stat_result) -> Path:
        """Beside its path, synced and read back.  Raises TierError, OSError."""
        self._copied = {one.name}
        try:
            return self._copy_to(one.beside(NEW), one, before)
        finally:
            self._copied = set()

    def _note_draft(self, one: BurstFile, new: Path, before: os.stat_result) -> None:
        """Note on the tier where a copy is made, so that the next drain can sweep the copy.  Raises
        OSError."""
        if _target(one.draft) != os.fspath(new):
            sweep_noted(one.draft)
        with suppress(OSError):  # it is there already; or a full tier, which only we can empty
            one.draft.parent.mkdir(exist_ok=True)
            one.draft.symlink_to(new)
        self._say_device(before, one.home.parent)

    def _copy_to(self, new: Path, one: BurstFile, before: os.stat_result) -> Path:
        self._note_draft(one, new, before)
        dest = LocalStore(new.parent, makes_folders=False)
        source = as_checkpoint(one.data, "files")
        found = StoredFile(one.name, before.st_size, before.st_mtime_ns)
        trip = Trip(self._pace, self.settings.concurrency, self._held, self._through)
        try:
            made, _ = copy_file(source, found, dest, new.name, trip)
        except TierFull:
            draft_of(new).unlink(missing_ok=True)
            raise
        self._read_back(new, replace(made, name=new.name))
        descriptor = os.open(new, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:  # by name, a chmod could follow a link
            os.fchmod(descriptor, before.st_mode & 0o7777)
            os.utime(descriptor, ns=(before.st_atime_ns, before.st_mtime_ns))
        finally:
            os.close(descriptor)
        return new

    def _read_back(self, new: Path, made: FileSum) -> None:
        told = 0

        def through(done: int, total: int) -> None:
            nonlocal told
            self._held()
            self._pace.take(done - told)
            told = done

        whole = as_checkpoint(new, "files", Manifest((made,)))
        verdict = verify(whole, "full", through, is_sparing=True)
        if not verdict.is_whole:
            new.unlink(missing_ok=True)
            raise TierError(
                f"{new}: reads back other bytes than were written ({verdict.problems[0]}); the "
                "fast copy stays"
            )

    def _say_device(self, before: os.stat_result, folder: Path) -> None:
        if not self._said_device and folder.stat().st_dev == before.st_dev:
            self._said_device = True
            warned = f"{self.fast.url} and {folder} are on one device: no gain in speed or safety"
            self._say(warning=warned)

    def _torn(self, one: BurstFile) -> os.stat_result | None:
        """As it is torn.  Known for sure only of a file that has been left alone for a while, by a
        program that has ended; an empty one that is the first of its path stays what it is."""
        if one.size_bytes or not self._is_first(one):
            self._await_end(one.data, one)
        found = self._left_torn(one.data, one)
        return None if found and not found.st_size and self._is_first(one) else found

    def _is_first(self, one: BurstFile) -> bool:
        """Of its path, as far as anything of earlier ones is left."""
        return self._older(one) is None and not is_earlier(one.was)

    def _await_end(self, path: Path, one: BurstFile) -> None:
        """Raises _UnfinishedError: the end is missing, and a program lives that may write it."""
        if is_torn(path, one.home.name) and is_running(self.fast.folder, one.owner):
            raise _UnfinishedError(
                f"{one.home}: without its end; stays as it is until that is written, or its run "
                "has ended"
            )

    def _left_torn(self, path: Path, one: BurstFile) -> os.stat_result | None:
        if not is_torn(path, one.home.name):
            return None
        age_s = time.time() - path.stat().st_mtime
        if age_s < self.settings.settle_s:
            self._rest(self.settings.settle_s - max(0.0, age_s))
        with leased(path, self.settings.settle_s) as lease:
            found = path.stat()
            return found if lease.is_free and is_torn(path, one.home.name) else None

    def _give_back(self, one: BurstFile, before: os.stat_result) -> None:
        """Of a file whose program ended before it: the one before comes back, and this is put aside
        as NAME.torn if there is something in it."""
        older, link = self._older(one), one.beside(NEW)
        if self._gives_back_save(one, older) and is_earlier(one.was):
            older = None  # the tier's save is no longer whole; the earlier file's save is
        if older is not None:
            link.unlink(missing_ok=True)
            link.symlink_to(older.data)
        new = one.was if older is None else link
        try:
            with self._as_it_was(one, before):
                is_there = is_earlier(new) or older is not None
                is_back = bool(_put(new, one)) if is_there else take(one)
        finally:
            link.unlink(missing_ok=True)
        if not is_back:
            return  # the program has been quicker
        self._rounds.forget(one.name)
        if older is not None:
            unmark(older)
        self._say_damaged(one)
        if before.st_size:
            try:
                self._copy(one, before).replace(torn_of(one))
            except (TierError, OSError):  # no room, or no such folder: it stays, and is named
                unmark(replace(one, is_home=True))
                raise
        fsync_folder(one.home.parent)
        drop(one)

    def _gives_back_save(self, one: BurstFile, older: BurstFile | None) -> bool:
        """Return True if the other files of a torn file's save were replaced by earlier files.
        older: the torn file's earlier version on the tier.  Raises TierError, OSError."""
        returned = None
        if older is not None:
            returned = (older.size_bytes or 0, older.mtime_ns)
        elif is_earlier(one.was):
            status = one.was.stat()
            returned = status.st_size, status.st_mtime_ns
        begun_ns = int(one.name[: OWNER.start], 16)
        done = give_back_save(one.home, begun_ns, returned, _lead_aside)
        if done:
            said = f"{listed(done)}: of a save that is not whole: what was there before is back"
            self._say(warning="; ".join(filter(None, (self.status.warning, said))))
        return bool(done)

    def _say_damaged(self, one: BurstFile) -> None:
        self._say(damaged=tuple(dict.fromkeys((*self.status.damaged, one.home.as_posix()))))

    def _older(self, one: BurstFile) -> BurstFile | None:
        """The newest whole one of its earlier versions that is on the tier yet."""
        return next((other for other in self._versions(one) if not _is_bad(other)), None)

    def _versions(self, one: BurstFile) -> list[BurstFile]:
        return _versions(one, entries(self.fast.folder, one.home))

    def _is_late(self, one: BurstFile, new: Path) -> None:
        """The program has written the path anew while this one was copied: it is what was there
        before, until the newer one counts.  Else its link went away, and the file with it, or it
        has another name: the next look finds it there."""
        is_newer = one.newest() != one.name
        if is_newer and os.path.lexists(one.was):
            return  # of a save that is home completely: keep until the next save is
        if is_newer and was_replaced(one) and not new.is_symlink():
            new.replace(one.was)
            fsync_folder(one.home.parent)
            # Older ones first: of what is left on the tier the newest is what was there before.
            for other in (*self._versions(one), one):
                drop(other)

    def _end_moved(self, one: BurstFile) -> None:
        """A file that moved to its path while it was written, as the fast tier was full."""
        self._end_was(one)
        if _is_file(one.home):
            self._earlier.came(one.name, one.home, os.path.lexists(one.was))
        _sweep(one.beside(NEW))
        for place in (one.draft, one.way):
            place.unlink(missing_ok=True)
        if os.path.lexists(one.data):  # it is made at this moment, by a program that was held up
            with suppress(FileExistsError):
                one.way.symlink_to(one.home)

    # --- what needs no copy

    def _forget_committed(self) -> None:
        """A program that opened the path just before the file took its link's place may write to
        what is on the tier: then the link comes back."""
        found = entries(self.fast.folder) if self._gone else []
        of_path: dict[str, list[BurstFile]] = {}
        for one in found:
            of_path.setdefault(one.home_at, []).append(one)
        committed = [one for one in found if one.name in self._gone]
        hidden = hidden_of(one.folder_at for one in committed)
        drafts = frozenset[str]()
        with suppress(OSError):
            drafts = frozenset(names_in(self.fast.folder / FOLDER / "draft"))
        for one in committed:
            if one.size_bytes is None or _target(one.home_at):
                # To it: a newer one was torn, and this is what was there before.  To a newer one:
                # that may be torn yet, and have replaced this one without keeping it.
                continue
            aside = None if one.name in drafts else hidden.get(one.folder_at)
            with suppress(OSError):  # the program has removed it, or its folder
                self._forget(one, of_path[one.home_at], *self._gone[one.name], aside)
        self._gone.clear()

    def _forget(
        self,
        one: BurstFile,
        of_path: list[BurstFile],
        before: os.stat_result,
        put: os.stat_result,
        hidden: Hidden | None,
    ) -> None:
        with leased(one.data_at, self.settings.settle_s) as lease:
            is_same = _is_as_before(os.stat(one.data_at), before)  # noqa: PTH116 - one of many
        if is_same and lease.is_free:
            # Else the path may be another file's since a rename.
            if len(of_path) > 1 and is_that(one.home_at, put):
                for other in _versions(one, of_path):
                    drop(other)
            if hidden is None or hidden.has_any(one):
                self._forget_was(one)
                drop(one)
            else:
                drop_data(one)
        else:
            _link(one, put)

    def _find_again(self, found: Sequence[BurstFile], linked: Mapping[str, BurstFile]) -> bool:
        """Files whose path leads elsewhere: older ones go when a newer one is whole; renamed links
        are looked for.  Whether anything was found."""
        for one in linked.values():
            if one.is_home and one.is_linked():  # a program that was killed did not remove it
                with suppress(OSError):
                    unmark(one)
        gone = self._drop_replaced(found, linked)
        lost = [
            one
            for one in found
            if one.name not in gone
            and (one.home_at not in linked or not (one.is_home or one is linked[one.home_at]))
        ]
        has_changed = bool(gone or lost) or any(one.is_home for one in linked.values())
        now_s = self._clock()
        lost = [one for one in lost if now_s >= self._searched_s.get(one.name, -1.0)]
        places = _renamed_links(lost)
        synced: set[str] = set()
        for one in lost:
            with suppress(TierError, OSError):  # one that cannot be looked at holds up no other
                self._end_search(one, places, synced)
        return has_changed

    def _end_search(self, one: BurstFile, places: Mapping[str, Path], synced: set[str]) -> None:
        """End the search for a file's link.  places: the new paths of renamed links, by the file's
        name.  synced: folders that were synced; is extended.  Raises TierError, OSError."""
        if one.name in places:
            rename_home(one, places[one.name])
        elif one.is_home or was_put(one) or not one.size_bytes:
            # The file was replaced or removed at the path, or stayed empty.  A file renamed
            # to the path may be torn: then this file is the earlier file of the path.
            if one.home in places.values():
                return
            # A killed drain may have placed the file without a sync of the folder.
            if one.folder_at not in synced and _is_file(one.home):
                fsync_folder(one.folder_at)
                synced.add(one.folder_at)
            self._drop_old(one)
        else:  # the file stays: a link to it may be where we did not look
            if time.time() - one.mtime_ns / 1e9 > LOOK_S:
                self._searched_s[one.name] = self._clock() + SEARCH_AGAIN_S
            _sweep(one.beside(NEW))

    def _drop_replaced(
        self, found: Sequence[BurstFile], linked: Mapping[str, BurstFile]
    ) -> set[str]:
        """Files that were replaced at their path go when a newer one of it is closed and whole, of
        which the path may not yet lead to that.  The names of those that are gone."""
        replaced: dict[str, list[BurstFile]] = {}
        for one in found:
            if (
                one.is_home
                and one is not linked.get(one.home_at, one)
                and one.name not in self._copied
            ):
                replaced.setdefault(one.home_at, []).append(one)
        gone = set()
        for home, older in replaced.items():
            newest, has_whole = linked[home], False
            for one in (newest, *_in_order(older, newest.name)):
                if has_whole:
                    with suppress(OSError):  # the next look does it
                        drop(one)
                        gone.add(one.name)
                else:
                    has_whole = self._may_go(one, {}) and not _is_bad(one)
        return gone

    def _held(self) -> None:
        """During a long copy, too, the tier has no room for all that is written meanwhile."""
        super()._held()
        if self._clock() < self._drop_again_s or not self._dropping.acquire(blocking=False):
            return
        try:
            begun_s = self._clock()
            with suppress(OSError, TierError):  # the next look does it
                found = self._lying()
                homes = {one.home_at for one in found if one.is_home}
                found = [one for one in found if one.home_at in homes]
                self._drop_replaced(found, _linked(found))
            now_s = self._clock()
            self._drop_again_s = now_s + max(LOOK_S, (now_s - begun_s) / LOOK_SHARE)
        finally:
            self._dropping.release()

    def _drop_old(self, one: BurstFile) -> None:
        """Unless a program is about to make its link, or writes to it.  Who was killed may have
        left what was there before."""
        with suppress(FileNotFoundError), leased(one.data, 0.0) as lease:
            made_s = max(one.data.stat().st_mtime, one.way.lstat().st_mtime)
            if lease.is_free and time.time() - made_s > LOOK_S:
                if os.path.lexists(one.was):
                    self._end_was(one, is_dead=not one.is_home)
                drop(one)

    def _backlog(self, left: Sequence[BurstFile]) -> None:
        self._say(
            backlog=tuple(one.home_at for one in left),
            backlog_bytes=sum(one.size_bytes or 0 for one in left),
            at_risk_s=_age_s(left),
        )


def _reason_of(error: Exception) -> str:
    """Return the value for Status.reason."""
    number = error.errno if isinstance(error, OSError) else 0
    if isinstance(error, TierFull) or number in (errno.ENOSPC, errno.EDQUOT):
        return "full"
    is_absent = isinstance(error, _AbsentError) or number in (errno.ENOTCONN, errno.ESTALE)
    return "absent" if is_absent else ""


def _age_s(left: Sequence[BurstFile]) -> float:
    """Of the oldest."""
    oldest = min((one.mtime_ns for one in left if one.mtime_ns), default=0)
    return max(0.0, time.time() - oldest / 1e9) if oldest else 0.0


def _is_as_before(now: os.stat_result, before: os.stat_result) -> bool:
    """Whether nobody has written to it.  A second path to a file, or its end, changes one time."""
    is_linked = now.st_nlink != before.st_nlink
    is_same = (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    return is_same and (is_linked or now.st_ctime_ns == before.st_ctime_ns)


def _are_one_file(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return is_that(one, other.lstat())
    return False


def _is_file(path: Path) -> bool:
    """Itself, and no link to one."""
    with suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False


def _fsync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _has_moved(one: BurstFile) -> bool:
    """Whether a file that is not on the tier was there: the way home is made before the file."""
    if one.is_home:
        return True
    try:
        made_s = one.way.lstat().st_mtime
    except FileNotFoundError:
        return False
    return time.time() - made_s > LOOK_S or _is_file(one.home)


def _written_again(one: BurstFile) -> TierError:
    return TierError(f"{one.home}: is being written again; drained after that")


def _is_bad(one: BurstFile) -> bool:
    return not one.size_bytes or is_torn(one.data, one.home.name)


def _linked(found: Iterable[BurstFile]) -> dict[str, BurstFile]:
    """Those to which their paths lead."""
    there = [one for one in found if one.size_bytes is not None]
    if len(there) < crowd.LEAST or not copier.is_built():
        return {one.home_at: one for one in there if one.is_linked()}
    leading = copier.leading([text for one in there for text in (one.home_at, one.data_at)])
    return {one.home_at: one for one, leads in zip(there, leading, strict=True) if leads}


def _renamed_links(lost: Sequence[BurstFile]) -> dict[str, Path]:
    """Return the new path of each renamed link, by the name of the file on the tier."""
    roots = dict.fromkeys(_root_of(one.home) for one in lost)
    # A folder that was renamed may have been made anew: the other is beside it, then.
    links = search(dict.fromkeys((*roots, *(root.parent for root in roots))))
    return {
        one.name: links[path]
        for one in lost
        if (path := os.fspath(one.data)) in links and not was_put(one)
    }


def _repeated(paths: Iterable[str]) -> set[str]:
    """Return the paths that occur more than once."""
    return {path for path, count in Counter(paths).items() if count > 1}


def _in_order(versions: Iterable[BurstFile], newest: str) -> list[BurstFile]:
    """Files of one path, newest first; newest: the name of the last one.  Names tell times, and
    where the clock was set back meanwhile, those that are later than the last one's are earlier."""
    return sorted(versions, key=lambda one: (one.name <= newest, one.name), reverse=True)


def _versions(one: BurstFile, of_path: Iterable[BurstFile]) -> list[BurstFile]:
    """Of the files of a path those that are earlier than one, newest first: that were replaced
    there, and not what another program has moved away."""
    others = [
        other
        for other in of_path
        if other.name != one.name and other.size_bytes is not None and other.is_home
    ]
    ordered = _in_order([*others, one], one.newest())
    return ordered[ordered.index(one) + 1 :]


@lru_cache(maxsize=1024)
def _folder(path: str) -> Path:
    return Path(path)  # once for all files of the folder


def _lead_aside(home: Path, newer: Path) -> bool:
    """Put the earlier file of a path in the place of the path's link, and move the link to `newer`.
    Return False if the link's target is torn.  After a kill in between, was_put() recognises the
    state.  Raises OSError."""
    was, data = was_of(home), Path(_target(home))
    if is_torn(data, home.name):
        return False
    try:
        exchange(was, home)
        was.replace(newer)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise
        home.replace(newer)
        was.replace(home)
    ours = BurstFile(data.name, str(data), str(home))
    if os.path.lexists(ours.way):  # else the other node's drain finds the link
        rename_home(ours, newer)
    return True


def _root_of(home: Path) -> Path:
    """The deepest folder above a path that is there."""
    for folder in home.parents:
        with suppress(OSError):  # too long a path, or a folder that is not ours to look into
            if folder.is_dir():
                return folder
    return Path("/")
