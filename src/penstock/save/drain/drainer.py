"""Copy every checkpoint from the fast tier to the slow tier, once, verified, resumable.

The module knows checkpoints and stores, and no framework.  The only state is in the tiers: a
checkpoint that is committed on the fast tier and not on the slow tier is work to do.
"""

import errno
import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from penstock.errors import PenstockError, SaveError, TierError, TierFull
from penstock.places.stores import LocalStore, Store, StoredFile, beside, open_store
from penstock.recording import recorder
from penstock.save.checkpoint import (
    HALF,
    OF_FILES,
    PLACING,
    UNREAD,
    Checkpoint,
    half_of,
    halves,
    origin_of,
    origins,
    parts_of_half,
    read_half,
)
from penstock.save.commit import Claim, claim, sweep
from penstock.save.copy.copying import (
    Trip,
    UnreadError,
    Unwanted,
    copy_checkpoint,
    copy_save,
    paced,
    stored_sum,
)
from penstock.save.copy.generations import end_drafts, end_moves
from penstock.save.copy.target import end_placing, end_together
from penstock.save.copy.writers import MOST_ASKED, MOST_OPEN_S, first_open
from penstock.save.drain.besides import Beside, strange
from penstock.save.drain.removals import Removals
from penstock.save.drain.renamed import why_renamed
from penstock.save.drain.retention import (
    Keep,
    Proven,
    doomed_safely,
    is_by_itself,
    own_copies,
    prune,
)
from penstock.save.drain.stillness import Stillness
from penstock.save.drain.working import (
    LEAST_DELAY_S,
    LOOK_S,
    LOOK_SHARE,
    MOST_DELAY_S,
    DrainSettings,
    DrainStatus,
    Working,
    sentence,
)
from penstock.save.find.contents import has_content
from penstock.save.find.copies import marks_there, of_others
from penstock.save.find.formats import find, remains_of
from penstock.save.find.links import is_linked, targets_of_links
from penstock.save.find.steps import rows_at_once
from penstock.save.find.tiermarks import DRAINS_TO, known_marks, marked, refuse_strange
from penstock.save.find.together import note_saves, other_parts
from penstock.save.find.unfetched import marks_of
from penstock.save.manifest import BESIDE, FileSum, Manifest, to_json
from penstock.save.small.batch import SMALL_BYTES
from penstock.save.unit.names import has_data, is_state
from penstock.save.unit.order import newest_first
from penstock.save.unit.progress import written_over
from penstock.save.unit.rules import add_rules
from penstock.save.unit.shapes import LACKS
from penstock.save.unit.spans import keep_saves
from penstock.save.unit.units import BY_RULE
from penstock.save.verify import failure_of, remembered, verify

__all__ = ["Drainer", "apart", "manifest_beside", "same_device"]

LIST_S = 60.0  # between two lists of a complete slow tier: stores charge for lists


# After this pause a partly rewritten checkpoint counts as abandoned.
LINGER_S = 10.0
MOST_UPLOAD_S = 86400.0  # age of an unfinished upload; nobody resumes an upload after a day
MOST_COPIES = 3  # of equal bytes in a row: another program may remove the copies
UNREAD_TRIES = 5  # half a minute: an error of a mount passes, a bad sector stays


class Drainer(Working):
    """The drain of a pair of tiers in this process.  Use the drain as a context: the context holds
    the claims of both tiers.

    patience_s: how long to wait for another drain of the tiers; the drain of a killed job goes on
    until everything is drained.  Raises SaveError: another process drains the tiers, or both tiers
    are a single folder; TierError: also if the slow folder differs from the folder of the earlier
    drains, as an empty mount point does.
    """

    def __init__(
        self,
        fast: str | os.PathLike[str],
        slow: str | os.PathLike[str],
        settings: DrainSettings | None = None,
        patience_s: float = 0.0,
        *,
        share: Callable[[], float | None] | None = None,
        listener: Callable[[DrainStatus], None] = lambda status: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(fast, settings, share, listener, clock)
        self.slow = open_store(slow)
        self._patience_s = patience_s
        self._slow_mark, self._is_remembered = "", False  # and recorded on the fast tier
        self._seen: dict[str, tuple[str, float]] = {}
        self._judged: dict[str, tuple[str, str]] = {}  # of other programs: identity, damage
        self._unfinished: dict[str, str] = {}  # on the fast tier, at the last search
        self._weak: dict[str, tuple[str, str]] = {}  # judged: identity, weak state
        self._damaged: dict[str, tuple[str, str]] = {}  # on the fast tier: identity, damage
        self._unread: dict[str, tuple[str, int]] = {}  # on the fast tier: identity, failed reads
        # By name: identity, earliest next attempt, delay, reason.
        self._again: dict[str, tuple[str, float, float, str]] = {}
        self._arrived: set[str] = set()  # identities on the slow tier at the last listing
        self._listed_s = self._pruned_s = -math.inf
        self._proven, self._is_swept, self._is_ended = Proven(), False, False
        self._removals = Removals(self.fast, self.slow, self._look_at_slow)
        self._current: Checkpoint | None = None
        self._looked_s = -math.inf
        self._still = Stillness(self.fast, clock)
        self._held_back = self._renamed = ""  # texts of warnings
        self._beside = Beside(self.fast, self.slow, self._look_at_slow)
        self._on_slow: list[Checkpoint] | None = None  # of the last listing
        self._names_there: set[str] | None = None  # of the copies at any listing
        self._saves_due_s = -math.inf
        self.has_answered = False  # the slow tier was listed at least once
        self._on_fast: list[Checkpoint] = []  # without unfinished checkpoints
        self._fresh: list[Checkpoint] | None = None  # a new listing, not yet used
        # Files and checksums of drained checkpoints, by name of the checkpoint and name within.
        self._before: dict[str, tuple[dict[str, StoredFile], dict[str, FileSum]]] = {}
        # Partly rewritten checkpoints: identity and reason, by name.
        self._partly: dict[str, tuple[str, str]] = {}
        self._without_room: list[str] = []  # names of the newest save that met a full slow tier
        self._copied: dict[tuple[str, str], int] = {}  # count, by name and identity
        apart(self.fast, self.slow)

    def __enter__(self) -> Self:
        with ExitStack() as claims:
            claims.enter_context(self._claimed(self.fast))
            if isinstance(self.slow, LocalStore):
                self._slow_mark = known_marks(self.fast).get(origin_of(self.slow), "")
                self._look_at_slow()  # before the first file is written to the slow tier
                claims.enter_context(self._claimed(self.slow))
                self._look_at_slow()  # the tier may have been unmounted during the wait
                self._mark_slow()
                self._say(state="starting", error="", warning="")
            for tier in (self.fast, self.slow):
                with suppress(TierError):  # affected checkpoints do not count
                    if isinstance(tier, LocalStore):
                        end_placing(tier)
                    if self.settings.rules:
                        add_rules(tier, self.settings.rules)
            self._claims = claims.pop_all()
        return self

    def _claimed(self, tier: LocalStore) -> Claim:
        def tell(said: str) -> None:
            if tier is self.fast:  # the status file belongs to the other drain
                self._told(replace(self.status, warning=said))
                return
            with suppress(TierError):
                self._backlog(self.backlog())
            self._say(state="waiting", error=said, warning=said)
            self._publish(is_last=True)

        return claim(tier.folder, "drain", self._patience_s, tell)

    def _mark_slow(self) -> None:
        assert isinstance(self.slow, LocalStore)
        self._slow_mark = marked(self.fast, self.slow, is_shared=self.settings.is_shared)
        self._is_remembered = origin_of(self.slow) in known_marks(self.fast)

    def _look_at_slow(self) -> None:
        """Raise TierError if the slow folder differs from the earlier slow folder, until the user
        removes the record."""
        if not isinstance(self.slow, LocalStore):
            return
        try:
            refuse_strange(self.fast, self.slow, self._slow_mark)
        except TierError:
            if not self._is_remembered or self.fast.stat(DRAINS_TO) is not None:
                raise
            self._mark_slow()

    def backlog(self) -> list[Checkpoint]:
        """Return the checkpoints that are missing on the slow tier, newest first: the newest is
        worth most if the node is lost.  Raises TierError."""
        begun_unix_ns = time.time_ns()
        self._still.begin()
        self._beside.forget()
        self._note_saves()
        copies = self._known_slow()
        checkpoints = [
            save for save in find(
                self.fast, hints=self._beside.hints, rest=self._beside.rest, others=copies
            )
            if save.identity in self._arrived or remains_of(save, copies) is None
        ]  # fmt: skip
        with suppress(TierError):  # the fast tier may be full: the drain must go on
            note_saves(self.fast, checkpoints, copies)
        # A checkpoint that was whole at the copy is whole, whatever files are beside it now.
        copied = {copy.manifest.source for copy in copies if copy.manifest and not copy.problem}
        checkpoints = [
            replace(save, problem="") if not save.is_broken and save.identity in copied else save
            for save in checkpoints
        ]  # fmt: skip
        on_fast = [save for save in checkpoints if not save.problem or save.is_broken]
        self._on_fast = on_fast
        self._warn()
        self._unfinished = {
            save.name: save.problem for save in checkpoints if save.problem and not save.is_broken
        }
        self._damaged = {
            save.name: self._damaged[save.name] for save in on_fast if self._wrong(save)
        }
        missing = self._missing(on_fast)
        self._still.end()
        if all(self._wrong(save) for save in missing):
            self._still.note(checkpoints, (*self._beside.hints, *self._beside.rest))
        self._say(looked_unix_ns=begun_unix_ns)
        self._say_damaged()
        return missing

    def _note_saves(self) -> None:
        """Store on the fast tier the files that each save of the recorded run wrote.  The reading
        takes at most the share LOOK_SHARE of the drain's time."""
        if self.settings.saves is None or self._clock() < self._saves_due_s:
            return
        begun_s = self._clock()
        with suppress(PenstockError, OSError):  # the run's first log may come later than the drain
            keep_saves(self.fast, self.settings.saves())
        cost_s = self._clock() - begun_s
        self._saves_due_s = self._clock() + max(LOOK_S, cost_s / LOOK_SHARE)

    def _say_damaged(self) -> None:
        damage = tuple(why for _, why in self._damaged.values())
        self._say(damaged=tuple(self._damaged), damage=damage)

    def _is_lasting(self, checkpoint: Checkpoint) -> bool:
        """Count a failed read; return True after UNREAD_TRIES of the same content."""
        identity, tries = self._unread.get(checkpoint.name, ("", 0))
        tries = tries + 1 if identity == checkpoint.identity else 1
        self._unread[checkpoint.name] = (checkpoint.identity, tries)
        return tries >= UNREAD_TRIES

    def _news(self) -> list[Checkpoint]:
        """Return the backlog; empty if nothing has changed since a search without work."""
        return [] if self._still.lasts() else self.backlog()

    def _owed(self) -> list[Checkpoint]:
        return [
            save for save in self.backlog()
            if not self._wrong(save)
            and not (_age_s(save) > LINGER_S and (self._is_partly(save) or self._is_open(save)))
        ]  # fmt: skip

    def left(self) -> dict[str, str]:
        """Return the names left on the fast tier only, with the reason, as of the last search."""
        unsettled = {name: f"{why}; not copied" for name, (_, why) in self._partly.items()}
        # A single save without a part was killed, or goes on: a rule would not help.
        lacking = [name for name, why in self._unfinished.items() if LACKS in why]
        unfinished = {
            name: f"{why}; not copied{HOW_TO_RULE if name in lacking[1:] else ''}"
            for name, why in self._unfinished.items()
        }
        return unsettled | unfinished | self._beside.left

    def _known_slow(self) -> Sequence[Checkpoint]:
        """Return the checkpoints of the last listing of the slow tier; a missing tier is reported
        later."""
        if self._on_slow is None:
            with suppress(TierError):
                self._fresh = self._list_slow()
        return self._on_slow or ()

    def _list_slow(self) -> list[Checkpoint]:
        self._look_at_slow()
        try:
            self._on_slow, self._listed_s = self._found_on_slow(), self._clock()
            names = {copy.called or copy.name for copy in self._on_slow if copy.is_ours}
            self._names_there = (self._names_there or set()) | names
        except TierError as error:
            if self.has_answered or isinstance(self.slow, LocalStore):
                raise
            said = str(error).rpartition(": ")[2]  # the rest names internal files
            raise TierError(f"{self.slow.url}: does not answer: {said}") from error.__cause__
        self.has_answered = True
        with suppress(TierError):
            note_saves(self.slow, self._on_slow)
        return self._on_slow

    def _found_on_slow(self) -> list[Checkpoint]:
        """Return the checkpoints of the slow tier; first end the moves of a killed drain."""
        if isinstance(self.slow, LocalStore):
            return find(self.slow)
        with suppress(SaveError):  # damaged: the older copy stays
            end_together(self.slow)
        copies = find(self.slow)
        if not any(copy.problem == PLACING for copy in copies):
            return copies
        end_moves(self.slow)
        return find(self.slow)

    def _is_partly(self, checkpoint: Checkpoint) -> bool:
        """Return True if a save has rewritten only some files of the last drained checkpoint: until
        the save has ended, the files are of two saves."""
        self._partly.pop(checkpoint.name, None)
        if checkpoint.manifest is not None:
            return False
        files = {checkpoint.inner(file): file for file in checkpoint.files}
        before, sums = self._before.get(checkpoint.name, ({}, {}))
        why = written_over(
            files,
            before,
            lambda name: name in sums and has_content(self.fast, files[name], sums[name]),
            checkpoint.why.startswith(BY_RULE),
        )
        if why:
            self._partly[checkpoint.name] = (checkpoint.identity, why)
        return bool(why)

    def _is_open(self, checkpoint: Checkpoint) -> bool:
        """Return True if a program on this node has a file of a state open for writing."""
        if checkpoint.manifest is not None or _age_s(checkpoint) > MOST_OPEN_S:
            return False
        state = [file for file in checkpoint.files if is_state(file.name.rpartition("/")[2])]
        state = state or [file for file in checkpoint.files if has_data(file.name)]
        latest = sorted(state, key=lambda file: file.mtime_ns or 0, reverse=True)[:MOST_ASKED]
        name = first_open(self.fast.path(file.name) for file in latest)
        if name:
            self._partly[checkpoint.name] = (
                checkpoint.identity,
                f"a program has {name} open for writing",
            )
        return bool(name)

    def _is_idle(self, failed: dict[str, str]) -> bool:
        return set(failed) <= set(self._damaged)

    def _wrong(self, checkpoint: Checkpoint) -> str:
        """Return the damage found on the fast tier; empty: none."""
        identity, why = self._damaged.get(checkpoint.name, ("", ""))
        return why if identity == checkpoint.identity else ""

    def damaged(self) -> dict[tuple[str, str], str]:
        """Return the checkpoints on the fast tier that are damaged or of two saves, in the form for
        latest_valid."""
        return {
            (self.fast.where(name), identity): why
            for name, (identity, why) in (self._damaged | self._partly).items()
        }

    def _missing(self, on_fast: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Return the checkpoints to copy to the slow tier."""
        is_known = {save.identity for save in on_fast if not self._wrong(save)} <= self._arrived
        if is_known and self._clock() - self._listed_s < LIST_S:
            return []
        on_slow = self._listed(on_fast)
        self._removals.saw(on_slow)
        self._arrived = marks_there(on_slow) | of_others(on_fast, on_slow)
        missing = [save for save in on_fast if self._arrived.isdisjoint(marks_of(save))]
        keep = self.settings.keep
        if keep is None:
            return missing
        if not keep.foreign:
            is_held = sum(not save.is_ours and not save.problem for save in on_fast) > keep.fast
            self._held_back = HELD_BACK if is_held else ""
            self._warn()
        return self._without_dropped(missing, on_fast, on_slow, keep) if missing else missing

    def _listed(self, on_fast: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Return the checkpoints of the slow tier.  Raises TierError: the tier cannot be listed,
        and the last listing counts."""
        try:
            on_slow = self._fresh if self._fresh is not None else self._list_slow()
            self._fresh = None
            return on_slow
        except TierError:
            self._backlog([save for save in on_fast if self._arrived.isdisjoint(marks_of(save))])
            raise

    def _without_dropped(
        self,
        missing: Sequence[Checkpoint],
        on_fast: Sequence[Checkpoint],
        on_slow: Sequence[Checkpoint],
        keep: Keep,
    ) -> list[Checkpoint]:
        """Return the missing checkpoints, without the checkpoints that the slow tier would drop at
        once and the fast tier keeps anyway."""
        failed = remembered(self.fast) | remembered(self.slow)
        failed |= {
            f"{save.name} {save.identity}": why for save in missing if (why := self._wrong(save))
        }
        dropped = self._dropped(missing, on_slow, keep, failed)
        may_go = [save for save in on_fast if (save.is_ours or keep.foreign) and not save.problem]
        stays = [save.name for save in may_go if not failure_of(save, failed)][: keep.fast]
        going = {save.name for save in may_go if save.name not in stays and is_by_itself(save)}
        if dropped:
            named = targets_of_links(self.fast, only_folders=True)
            dropped -= {save.name for save in missing if is_linked(save, named)}
            named = targets_of_links(self.fast)
            going -= {save.name for save in missing if is_linked(save, named)}  # kept by a rule
        return [save for save in missing if save.name not in dropped - going]

    def _dropped(
        self,
        missing: Sequence[Checkpoint],
        on_slow: Sequence[Checkpoint],
        keep: Keep,
        failed: dict[str, str],
    ) -> set[str]:
        """Return the names that the rules would drop from the slow tier.  A checkpoint of another
        program may be damaged: an unread checkpoint is no reason to drop an older checkpoint."""
        as_ours = {
            save.name: save
            if save.is_ours
            else replace(save, manifest=Manifest((), save.step, source=save.identity))
            for save in missing
        }
        unread = [
            save for save in missing
            if not save.is_ours and self._judged.get(save.name, ("", ""))[0] != save.identity
        ]  # fmt: skip
        read = (as_ours[save.name] for save in missing if save not in unread)
        copied = [*own_copies(self.fast, on_slow), *read]

        def doomed(more: Sequence[Checkpoint]) -> set[str]:
            leaving = doomed_safely([*copied, *more], keep, failed, self._proven, self.fast)
            return {save.name for save in leaving if save.store is self.fast}

        dropped = doomed(())
        dropped |= {save.name for save in unread if save.name in doomed([as_ours[save.name]])}
        # One by one the files of a row do not show the row.
        return dropped - {save.name for row in rows_at_once([*missing, *on_slow]) for save in row}

    def _is_settled(self, checkpoint: Checkpoint) -> bool:
        """Return True for a committed checkpoint, and for a checkpoint without a change for
        settle_s."""
        if checkpoint.manifest is not None:
            return True
        if self._is_partly(checkpoint):
            return False
        identity, since_s = self._seen.get(checkpoint.name, ("", 0.0))
        now_s = self._clock()
        if identity != checkpoint.identity:
            self._seen[checkpoint.name] = (checkpoint.identity, now_s)
            since_s = now_s
        settle_s = self.settings.settle_s
        is_quiet = _age_s(checkpoint) >= settle_s or now_s - since_s >= settle_s
        return is_quiet and not self._is_open(checkpoint)

    def _judge(self, checkpoint: Checkpoint) -> None:
        """Check another program's checkpoint before the copy: the manifest of the copy would
        confirm earlier damage.  Raises SaveError: damaged, or cut short; TierError."""
        if checkpoint.problem.startswith(UNREAD):
            raise UnreadError(f"{checkpoint.where}: {checkpoint.problem}")
        if checkpoint.problem:
            raise SaveError(f"{checkpoint.problem}; not copied")
        if checkpoint.manifest is not None:
            return
        if why := self._strange(checkpoint):
            raise SaveError(why)
        identity, why = self._judged.get(checkpoint.name, ("", ""))
        if identity != checkpoint.identity:
            progress = paced(self._held, self._pace)
            is_small = checkpoint.size_bytes <= SMALL_BYTES * len(checkpoint.files)
            # Reading a small file takes no longer than opening a file.
            verdict = verify(checkpoint, "full" if is_small else "sizes", progress)
            verdict = (
                verdict if verdict.problems or is_small else verify(checkpoint, "full", progress)
            )
            why = "; ".join(verdict.problems)
            self._weak[checkpoint.name] = (checkpoint.identity, verdict.weakness)
            if verdict.is_unended and _age_s(checkpoint) < LINGER_S:  # the writer may go on
                raise TierError(f"{why}; copied when it has ended")
            if why.startswith("cannot be read"):
                raise UnreadError(f"{checkpoint.where}: {why}")
            if "cannot be read" not in why:  # else a later read may succeed
                self._judged[checkpoint.name] = (checkpoint.identity, why)
        if why:
            raise SaveError(f"{why}; not copied: save it again, or remove it")

    def _strange(self, checkpoint: Checkpoint) -> str:
        """Name an entry of another program's checkpoint that is no regular file.  Returns an empty
        string if every entry is a regular file."""
        if checkpoint.is_folder:
            reasons = strange(self.fast, checkpoint.name)
        elif any(self.fast.path(file.name).is_symlink() for file in checkpoint.files):
            reasons = strange(self.fast, checkpoint.folder.rstrip("/"), is_deep=False)
            reasons = {
                file.name: reasons[file.name] for file in checkpoint.files if file.name in reasons
            }
        else:
            return ""
        return "; ".join(f"{name}: {why}" for name, why in sorted(reasons.items())[:1])

    def once(self) -> list[str]:
        """Drain everything, and return a sentence for each checkpoint or file that was not drained.
        Raises Stopped, and TierError if a tier cannot be listed."""
        failed: dict[str, str] = {}
        for attempt in range(self.settings.tries):
            failed = self._round()
            is_settling = any(not self._is_settled(save) for save in self._news())
            if not set(failed) - set(self.status.damaged) and not is_settling:
                break
            if attempt + 1 < self.settings.tries:
                delay_s = min(MOST_DELAY_S, LEAST_DELAY_S * 2**attempt)
                self._rest(self.settings.settle_s if not failed else delay_s)
                self._again.clear()
        self.is_over = True
        if failed:
            with suppress(TierError):  # the failures report the reason
                self._copy_beside(failed)
        failed = failed or self._round()
        return [sentence(name, why) for name, why in (failed | self.left()).items()]

    def _settle_s(self) -> float:
        """Return how long a file of no checkpoint must be unchanged: 0 at the end."""
        return 0.0 if self.is_over else self.settings.settle_s

    def _copy_beside(self, failed: Collection[str]) -> None:
        """Copy the files beside the checkpoints.  failed: names of checkpoints that were not
        copied.  Raises TierError."""
        out = {*self._damaged, *self._unfinished, *failed}
        if self._beside.copy(Trip(self._pace, 1, self._held), out - {""}, self._settle_s()):
            self._pruned_s = -math.inf  # a file may complete a save
        self._warn()

    def _round(self) -> dict[str, str]:
        """Drain each checkpoint that is due, once.  Return failures by name."""
        failed, is_waiting = dict[str, str](), False
        try:
            self._removals.carry_out(self._listed_s == -math.inf)
        except TierError as error:  # the search for the backlog reports the reason
            failed[""] = str(error)
        left = self._news()
        self._sweep(left)
        self._backlog(left)
        tried = set[str]()  # since the last search
        while left:
            save = self._save_of(left.pop(0), left)
            left = [part for part in left if part not in save]
            if self._is_too_early(save, failed):
                continue
            settled = [self._is_settled(part) for part in save]
            if not all(settled):
                is_waiting = True
                continue
            self._try(save, failed)
            is_waiting = False
            tried |= {part.name for part in save}
            if left and not self._still.is_search_due():
                continue
            self._prune()
            self._removals.carry_out()
            due = self.backlog()
            self._backlog(due)
            left = [part for part in due if part.name not in failed and part.name not in tried]
            tried.clear()
        if self.is_over or (not is_waiting and set(failed) <= set(self._damaged)):
            self._copy_beside(failed)
        if self._clock() - self._pruned_s >= LIST_S:
            self._prune()
        self._end_earlier_work()
        return failed | {name: why for name, (_, why) in self._damaged.items()}

    def _sweep(self, left: Sequence[Checkpoint]) -> None:
        """Remove the remains of earlier drains from the slow tier, once."""
        if isinstance(self.slow, LocalStore) and not self._is_swept:
            self._is_swept = True
            sweep(self.slow.folder, keep=[save.name for save in left])

    def _end_earlier_work(self) -> None:
        """End the copies and uploads of killed drains, once."""
        if self._is_ended:
            return
        self._is_ended = True
        with suppress(TierError):  # the next start tries again
            self.end_halves()
            due = [] if self._still.lasts() else self._owed()
            owed = {file.name for save in due for file in save.files}
            self.slow.end_uploads(owed, MOST_UPLOAD_S)

    def _save_of(self, first: Checkpoint, left: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Return a checkpoint and the other parts of the save, in other folders or under other
        names, if the parts must replace the copies of an earlier save together.  left: the other
        checkpoints that are due."""
        with suppress(TierError):
            names = {part.name for part in other_parts(first, self._on_fast)}
            parts = [save for save in left if save.name in names]
            if parts and self._names_there is None:
                self._known_slow()
            copies = (self._names_there or set()) | self._before.keys()
            if any((part.called or part.name) in copies for part in (first, *parts)):
                return [first, *parts]
        return [first]

    def _is_too_early(self, save: Sequence[Checkpoint], failed: dict[str, str]) -> bool:
        """Return True if the delay after a failure lasts.  failed: receives the reason."""
        for checkpoint in save:
            identity, not_before_s, _, why = self._again.get(checkpoint.name, ("", 0.0, 0.0, ""))
            if identity == checkpoint.identity and self._clock() < not_before_s:
                failed |= dict.fromkeys((part.name for part in save), why)
                return True
        return False

    def _try(self, save: Sequence[Checkpoint], failed: dict[str, str]) -> None:
        """Judge and drain the parts of a save.  failed: receives the reason of a failure."""
        checkpoint = save[0]
        try:
            for checkpoint in save:
                self._judge(checkpoint)
                self._count_copy(checkpoint)
            self._drain_with_room(save)
            for part in save:
                self._again.pop(part.name, None)
            self._say(error="")
        except (PenstockError, OSError) as error:
            why = str(error)
            for part in save:
                failed[part.name] = (
                    why if part is checkpoint or len(save) == 1 else f"{checkpoint.name}: {why}"
                )
                self._delay(part, why)
            self._say(error=sentence(checkpoint.name, why))
            is_lasting = isinstance(error, UnreadError) and self._is_lasting(checkpoint)
            if isinstance(error, SaveError) or is_lasting:
                self._damaged[checkpoint.name] = (checkpoint.identity, why)
                self._say_damaged()
        except Unwanted:
            pass

    def _drain_with_room(self, save: Sequence[Checkpoint]) -> None:
        """Drain a save.  Without room for it, first remove the drafts of other copies: two drafts
        would keep the room from each other.  An older save leaves no draft while a newer one waits
        for room.  Raises as _drain()."""
        names = [part.name for part in save]
        try:
            self._drain(save)
        except (PenstockError, OSError) as error:
            if not _is_full(error) or not isinstance(self.slow, LocalStore):
                raise
            waiting = [part for part in self._on_fast if part.name in self._without_room]
            is_newest = save[0] in newest_first([*waiting, save[0]])[:1]
            if is_newest:
                self._without_room = names
            if not sweep(self.slow.folder, keep=self._without_room) or not is_newest:
                raise
            self._drain(save)
        if set(names) & set(self._without_room):
            self._without_room = []

    def _count_copy(self, checkpoint: Checkpoint) -> None:
        """Count the copies of equal bytes.  Raises TierError: another program removes the
        copies."""
        key = (checkpoint.name, checkpoint.identity)
        if self._copied.get(key, 0) >= MOST_COPIES:
            self._copied[key] -= 1  # one more attempt after the delay
            raise TierError(f"{self.slow.url}: its copy is not found there again")

    def _delay(self, checkpoint: Checkpoint, why: str) -> None:
        """Note a failure: the next attempt has to wait, twice as long after each failure."""
        identity, _, delay_s, _ = self._again.get(checkpoint.name, ("", 0.0, 0.0, ""))
        if identity != checkpoint.identity:  # also if the name has a new checkpoint by now
            delay_s = LEAST_DELAY_S
        again_s = self._clock() + delay_s
        self._again[checkpoint.name] = (
            checkpoint.identity,
            again_s,
            min(MOST_DELAY_S, 2 * delay_s),
            why,
        )

    def end_halves(self) -> None:
        """End the copies of the fast tier that a killed drain left without a manifest and without a
        source to complete the copy: write the manifest of a whole copy, remove an incomplete copy.
        Raises TierError, Stopped."""
        own_places = ("", *origins(self.fast))
        if not isinstance(self.slow, LocalStore):
            end_drafts(self.slow, own_places, {save.called or save.name for save in self._owed()})
        if not (marks := halves(self.slow)):
            return
        waiting = {save.called or save.name for save in self._owed()}
        singles = {beside(copy.name, HALF): copy for copy in find(self.slow) if not copy.is_folder}
        for mark, names in marks.items():
            with suppress(TierError):  # an error of a single copy: the next start tries again
                called, origin = half_of(self.slow, mark)
                if origin not in own_places:
                    continue
                if self.slow.stat(manifest_beside(mark)) is not None or (
                    called not in waiting and self._is_ended_half(mark, names, singles.get(mark))
                ):
                    self.slow.delete(mark)

    def _is_ended_half(
        self, mark: str, names: Sequence[str], checkpoint: Checkpoint | None
    ) -> bool:
        _, origin, has_several = read_half(self.slow, mark)
        _, parts = parts_of_half(self.slow, mark)
        if parts:
            is_all = all(self.slow.stat(name) is not None for name in parts)
            if (
                is_all
                and checkpoint is not None
                and {file.name for file in checkpoint.files} == {*parts}
            ):
                return self._is_adopted(
                    replace(checkpoint, problem=""), origin, are_of_one_save=True
                )
            return not is_all and self._are_removed(parts)
        if checkpoint is not None and not checkpoint.problem:
            return self._is_adopted(checkpoint, origin)
        is_prefix = any(".data-" in name or name.endswith(".index") for name in names)
        if has_several and not is_prefix:
            return False  # a mark of older code: the files of the copy are unknown
        if checkpoint is not None and self._is_adopted(replace(checkpoint, problem=""), origin):
            return True
        return self._are_removed([name for name in names if beside(name, HALF) != mark])

    def _are_removed(self, names: Sequence[str]) -> bool:
        for name in names:  # an incomplete set of files
            self.slow.delete(name)
        return True

    def _is_adopted(
        self, checkpoint: Checkpoint, origin: str, *, are_of_one_save: bool = False
    ) -> bool:
        """Write the manifest of a copy that is whole by the file format; return False otherwise.
        In a copy of several files, a file may be of another version, as only checksums show."""
        progress = paced(self._held, self._pace)
        verdict = verify(checkpoint, "full", progress)
        is_safe = are_of_one_save or len(checkpoint.files) == 1 or not verdict.unprotected_bytes
        if not verdict.is_whole or not is_safe:
            return False
        sums = tuple(
            stored_sum(checkpoint, file, paced(self._held, self._pace)) for file in checkpoint.files
        )
        # The copy counts as another program's: nothing has compared the copy with the fast tier.
        manifest = Manifest(
            sums, checkpoint.step, kind=checkpoint.kind, created_unix_ns=checkpoint.mtime_ns,
            verified_unix_ns=time.time_ns(), source=f"{OF_FILES}{checkpoint.identity}",
            origin=origin, called=checkpoint.called, state=verdict.weakness,
        )  # fmt: skip
        self.slow.put(checkpoint.manifest_name, to_json(manifest))
        return True

    def _held(self) -> None:
        """Run the checks of Working, and end a copy that is no longer needed."""
        super()._held()
        with self._lock:
            current, now_s = self._current, self._clock()
            if current is None or now_s - self._looked_s < LOOK_S:
                return
            self._looked_s = now_s
        self._look_at_slow()
        with suppress(TierError):
            self._removals.thin(current)
            if self._removals.is_over(current):
                raise Unwanted

    def _prune(self) -> None:
        self._pruned_s = self._clock()
        if self.settings.keep is not None:
            with suppress(TierError):  # the next round that needs the tier reports the error
                prune(self.fast, self.slow, self.settings.keep, self._proven)

    def _with_state(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint with the verdict that the manifest of the copy keeps."""
        identity, state = self._weak.get(checkpoint.name, ("", ""))
        return (
            replace(checkpoint, judged=state)
            if state and identity == checkpoint.identity
            else checkpoint
        )

    def _drain(self, save: Sequence[Checkpoint]) -> None:
        save = [self._with_state(part) for part in save]
        total_bytes = sum(part.size_bytes for part in save)
        trip = Trip(self._pace, self.settings.concurrency, self._held, self._through)
        first = save[0]
        self._say(state="draining", current=first.name, done_bytes=0, total_bytes=total_bytes)

        def begins(checkpoint: Checkpoint) -> None:
            self._current = checkpoint

        with recorder.span("drain", -1 if first.step is None else first.step):
            begins(first)
            try:
                if len(save) == 1:
                    copies = [copy_checkpoint(first, self.slow, trip)]
                else:
                    copies = copy_save(save, self.slow, trip, begins)
            finally:
                self._current = None
        self._look_at_slow()  # a small checkpoint is copied between two looks
        for part, (name, manifest) in zip(save, copies, strict=True):
            self._note_copy(part, name, manifest)
        self._on_slow = None  # outdated: later checkpoints are judged with the new copy
        self._say_damaged()
        self._say(
            drained=self.status.drained + len(save),
            drained_bytes=self.status.drained_bytes
            + sum(manifest.size_bytes for _, manifest in copies),
            last=save[-1].name,
        )

    def _note_copy(self, checkpoint: Checkpoint, name: str, manifest: Manifest) -> None:
        files = {checkpoint.inner(file): file for file in checkpoint.files}
        self._before[checkpoint.name] = files, manifest.by_saved_name
        key = (checkpoint.name, checkpoint.identity)
        self._copied[key] = self._copied.get(key, 0) + 1
        if name != checkpoint.name and not self._renamed:  # one warning is enough
            self._renamed = why_renamed(
                checkpoint, name, self.slow, self._on_slow or (), origins(self.fast)
            )
            self._warn()
        self._proven.note(self.slow.where(name), manifest.identity)
        self._damaged.pop(checkpoint.name, None)
        self._unread.pop(checkpoint.name, None)

    def _warn(self) -> None:
        doubts = (f"{save.name}: unchecked: {save.doubt}" for save in self._on_fast if save.doubt)
        said = (self._held_back, self._renamed, *self._beside.warnings, next(doubts, ""))
        self._say(warning="; ".join(filter(None, said)))

    def _backlog(self, all_left: Sequence[Checkpoint]) -> None:
        left = [save for save in all_left if not self._wrong(save)]
        times = [save.mtime_ns for save in left if save.mtime_ns]  # 0: no file can be seen
        self._at_risk_since_s = min(times) / 1e9 if times else None
        self._say(
            backlog=tuple(save.name for save in left),
            backlog_bytes=sum(save.size_bytes for save in left),
            at_risk_s=max(0.0, time.time() - min(times) / 1e9) if times else 0.0,
        )


def _is_full(error: Exception) -> bool:
    cause = error if isinstance(error, OSError) else error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    return isinstance(error, TierFull) or number in (errno.ENOSPC, errno.EDQUOT)


def _age_s(checkpoint: Checkpoint) -> float:
    return time.time() - checkpoint.mtime_ns / 1e9


def apart(fast: LocalStore, slow: Store) -> None:
    """Raise SaveError if both tiers are a single folder, or a tier is inside the other tier;
    TierError if the fast tier is no folder."""
    if not fast.folder.is_dir():
        raise TierError(f"{fast.url}: no such folder; the fast tier is where the training saves")
    if isinstance(slow, LocalStore):
        here, there = fast.folder.resolve(), slow.folder.resolve()
        if here == there or here in there.parents or there in here.parents:
            raise SaveError(f"{fast.url} and {slow.url}: one lies in the other; name two folders")


HOW_TO_RULE = " (--unit says which files are one checkpoint)"


HELD_BACK = (
    "checkpoints of another program stay on the fast tier, more of them than --keep-fast says; "
    "--foreign lets them go once they are drained"
)


def same_device(fast: Path, slow: Path) -> str:
    """Return a sentence if both tiers are on one device; else empty.  slow may not exist yet."""
    there = slow
    while not os.path.exists(there):  # noqa: PTH110 - Path.exists raises what is not to end a drain
        there = there.parent
    if fast.stat().st_dev != there.stat().st_dev:
        return ""
    return (
        f"{fast} and {slow} are on the same device: the copy of a checkpoint is no safer than "
        "the checkpoint"
    )


def manifest_beside(mark: str) -> str:
    return f"{mark.removesuffix(HALF)}{BESIDE}"
