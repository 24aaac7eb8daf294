"""Checkpoints of a training: a snapshot blocks, another process writes, a third one drains.

    from penstock.save import Checkpointer, Keep

    ckpt = Checkpointer(fast="/nvme/run1", slow="/lustre/run1", keep=Keep(fast=2, last=3))
    step = ckpt.restore({"model": model, "optim": optim}, default=0)
    for step in range(step, n_steps):
        ...
        if step % 500 == 0:
            ckpt.save(step, {"model": model, "optim": optim})   # blocks for a copy in memory
    ckpt.close()                                                # or `with ckpt:`

Knows the order of things and what they cost.  How a file is laid out, when a checkpoint counts,
which is whole and how it gets to the slow tier are known elsewhere in this folder.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import PenstockError, SaveError, TierError
from penstock.recording import recorder
from penstock.save import loading, openplaces
from penstock.save.arena import Arena
from penstock.save.arguments import of_step, refuse_wrong, refuse_wrong_numbers, whole_step
from penstock.save.arriving import Arrival, Arriving
from penstock.save.beside import Drain
from penstock.save.commit import STATE
from penstock.save.handle import AtRisk, Handle, Save, SaveUnderWay
from penstock.save.ledger import Ledger, watch_steps
from penstock.save.lost import Cheaper
from penstock.save.openplaces import CLOSE_WRITER_S, OpenPlace
from penstock.save.ranks import World, found_world
from penstock.save.restoring import Restorer
from penstock.save.retention import Keep
from penstock.save.snapshot import (
    SCALARS_FILE,
    ArraySnapshot,
    TorchSnapshot,
    holds_tensors,
    size_of,
    state_of,
)
from penstock.save.tiered import (
    Chosen,
    Tiers,
    content_at,
    drain_beside,
)
from penstock.save.working import DrainStatus, read_status
from penstock.save.writer import Writer, WriterJob, WriterResult

__all__ = ["AtRisk", "Checkpointer", "Handle", "Save", "opened"]

AnyPath = str | os.PathLike[str]
GROWTH = 1.05  # from one save to the next, at most
LOOK_S = 0.2  # how often the slow tier's manifests are looked for


# A save that blocks by choice, and others than this rank do not come to: of the longest that was.
LEAST_BLOCK_S, LONGEST_BLOCK = 2.0, 4
SAVES_LEARNT = 2  # of those, that the choice of a mode waits for: each is a walk over all steps
TEND_S = 2.0  # how often it is looked whether the drain is alive
LEAST_RESTART_S, MOST_RESTART_S = 2.0, 60.0  # between two starts of a drain that ends: doubled
RESTARTS_AWAITED = 4  # by wait() and close()
TOLD_AFTER_S = 10.0  # of waiting for the drain, to a program that shows no progress
log = logging.getLogger("penstock.save")


class Checkpointer:
    """Saves and restores the state of a training through a fast and a slow tier.

    fast: a folder on a local disk; slow: a folder or an fsspec URL; None: there is no such tier.
    keep: how many stay where.  drain: a rate such as "300MB/s", None for no limit.  on_full: what a
    save does while there is no room on fast, or the save before is still being written: "wait",
    "skip", "direct" (straight to slow, which must be a folder).  on_error: what save() does when a
    tier is full or an earlier save has failed in the background: "raise" the error once, or "warn".
    mode: "background", "blocking" (save() returns when the checkpoint is local), or "auto": the one
    that costs the training less, where its steps are known (see tick); of many ranks by rank 0's.
    level: how thoroughly restore() checks: "full" (every byte, so that a damaged one is passed
    over), "sample" or "sizes".  weights_only: as of torch.load.
    world: the ranks, found by itself from torch.distributed or MPI.  rank_timeout_s: so long may
    ranks be apart in a save.  drain_timeout_s: how long close() waits for the drain; None: until
    all of it is durable.

    Raises SaveError: another job has the folder; TierError: a tier is missing or cannot be written.
    """

    def __init__(
        self,
        fast: AnyPath | None = None,
        slow: AnyPath | None = None,
        *,
        keep: Keep | None = None,
        drain: str | None = None,
        on_full: str = "wait",
        on_error: str = "raise",
        mode: str = "auto",
        level: str = "full",
        weights_only: bool = True,
        world: World | None = None,
        rank_timeout_s: float = 600.0,
        drain_timeout_s: float | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        refuse_wrong(keep, on_full, on_error, mode, level, progress)
        refuse_wrong_numbers(rank_timeout_s, drain_timeout_s, drain)
        self._tiers = Tiers.of(fast, slow)
        if on_full == "direct" and fast is not None and self._tiers.slow_folder is None:
            raise SaveError(
                "on_full='direct' saves to the slow tier, which has to be a folder: give slow= "
                "one, or say 'wait' or 'skip'"
            )
        self._keep = keep or Keep()
        self._is_pruning = keep is not None or self._tiers.has_both
        self._on_full, self._on_error, self._level = on_full, on_error, level
        self._weights_only = weights_only
        self._world = world if world is not None else found_world()
        if self._world.size > 1 and on_full != "wait":
            raise SaveError(f"on_full={on_full!r} is for one rank: many would not agree; say wait")
        self._rank_timeout_s, self._drain_timeout_s = rank_timeout_s, drain_timeout_s
        self._progress = progress
        self._refuse_second()
        self._token = self._world.token()
        self._ready_tiers()
        self._snapshot: TorchSnapshot | ArraySnapshot | None = None
        self._writer: Writer | None = None
        self._lock = threading.Lock()
        self._ledger, self._n_saves = Ledger(), 0
        self._cheaper = Cheaper(mode)
        # What the next save does.  Of many ranks rank 0 says it with the save before, so that all
        # of them do the same.
        self._will_block = self._cheaper.is_blocking
        self._unlearnt: deque[int] = deque(maxlen=SAVES_LEARNT)  # numbers whose cost it lacks
        self._failed: PenstockError | None = None
        self._free = threading.Event()  # the arena is nobody's
        self._free.set()
        # A save under way holds us, the thread between two saves does not: what a program has lost
        # sight of is closed.  None: no more saves.
        self._queue: queue.SimpleQueue[_Wanted | Checkpointer | None] = queue.SimpleQueue()
        self._pending: list[tuple[int, SaveUnderWay]] = []  # local, and not durable yet
        self._is_closed = self._is_abandoned = False
        self._has_given_up = False  # what the drain may still have to copy
        self._arriving = Arriving(self._tiers)
        self._restorer = Restorer(self._tiers, self._world, level, weights_only)
        self._start_writer()
        self._rate = drain
        self._restart_s, self._restart_after_s = 0.0, LEAST_RESTART_S
        self._n_restarts = 0  # since something became durable
        self._drain = self._first_drain(drain)
        self._ledger.note_life(**self._where_told())
        self._settle()

    def _settle(self) -> None:
        """The thread that follows saves, and what finds this object without keeping it."""
        self._place = OpenPlace(os.getpid(), self._where(), weakref.ref(self))
        self._thread = threading.Thread(
            target=_follow, args=(self._place, self._queue), name="penstock-save", daemon=True
        )
        self._thread.start()
        self._forget_steps = watch_steps(weakref.ref(self))
        openplaces.keep(self._place)

    def _where_told(self) -> dict[str, Any]:
        slow = self._tiers.slow
        return {
            "rank": self._world.rank,
            "fast": self._tiers.root,
            "slow": slow.url if self._tiers.has_both and slow is not None else None,
        }

    def _where(self) -> tuple[str, int]:
        return os.path.realpath(self._tiers.root), self._world.rank

    def _refuse_second(self) -> None:
        """The first one's writer would hold the folder for as long as it is not closed."""
        where = self._where()
        if opened(*where) is not None:
            for place in openplaces.places_at(*where):
                place.is_idle.wait(CLOSE_WRITER_S)
            gc.collect()  # what nobody can reach any more, but itself, is as good as closed
        if opened(*where) is not None:
            raise SaveError(
                f"{self._tiers.root}: a Checkpointer of this process has this folder: close() the "
                "first (as before a cell of a notebook is run again), or go on with it"
            )
        for place in openplaces.places_at(*where):
            place.is_closed.wait(CLOSE_WRITER_S)

    def _ready_tiers(self) -> None:
        """Rank 0 makes the folders; then all have to see them."""
        error = ""
        if self._world.rank == 0:
            try:
                self._tiers.make(self._token)
            except PenstockError as found:
                error = str(found)
        error = self._world.agreed(error)
        if error:
            raise TierError(error)
        unseen = [
            str(rank)
            for rank, sees in enumerate(self._world.gather(str(self._tiers.sees(self._token))))
            if sees != "True"
        ]
        if self._world.rank == 0:
            self._tiers.settle(self._token)
        if unseen:
            raise TierError(
                f"{self._tiers.root}: not the same folder in rank {', '.join(unseen)} as in rank "
                "0; ranks on several nodes need a fast tier that all of them see, or none"
            )
        if self._world.rank == 0 and (said := self._tiers.warning()):
            log.warning("%s", said)

    def _start_writer(self) -> None:
        world = self._world
        self._writer = Writer(
            {
                "root": self._tiers.root,
                "rank": world.rank,
                "world_size": world.size,
                "token": self._token,
            }
        )
        said = self._writer.finished()  # its first word: the tier is claimed, or why not
        if said.error:
            self._writer.close()
            self._writer = None
            raise SaveError(said.error)

    # Saving

    def save(
        self,
        step: int,
        state: Mapping[str, Any] | None,
        metrics: Mapping[str, float] | None = None,
    ) -> Handle:
        """Copies the state, and returns while another process writes it.

        state: things that have a state_dict(), tensors, arrays, containers of them, plain values.
        None, or an empty one: this rank has nothing of its own to save (all ranks still call this,
        with one step).  metrics: numbers kept with the checkpoint.

        Raises SaveError: the state holds what cannot be saved (with the way to it), or an earlier
        save has failed; TierFull.  The training's state is never changed.
        """
        begin_s = time.perf_counter()
        self._refuse_closed()
        step = whole_step(step)
        if not state and self._world.size == 1:
            raise SaveError(f"step {step}: the state is empty: there is nothing to save")
        failed, self._failed = self._failed, None
        if failed is not None and self._on_error == "warn":
            log.warning("%s", failed)
            failed = None
        if failed is not None and self._world.size == 1:
            raise failed
        handle = Handle(int(step))
        number = self._n_saves
        self._n_saves += 1
        going = SaveUnderWay(handle, Save(int(step), time.time()), begin_s)
        span = recorder.begin("checkpoint", number)
        try:
            self._begin(number, going, state or {}, metrics)
        except PenstockError as error:
            self._ledger.know(number, going.save, error=str(error))
            handle._fail(error)
            if self._on_error == "raise" or not isinstance(error, TierError):
                raise
            log.warning("%s", of_step(step, error, " is not saved:"))
        finally:
            if span is not None:
                span.end()
        if going.save.is_blocking:
            self._raise_here(handle)
        if failed is not None:  # of many ranks others may know of none, and wait for this one
            raise failed
        return handle

    def _begin(
        self, number: int, going: SaveUnderWay, state: Mapping[str, Any], metrics: Any
    ) -> None:
        try:
            going.metrics = _numbers(metrics)
            is_staged = self._stage(number, going, state)
        except BaseException as error:
            if self._world.size > 1:  # the other ranks are not to wait for this one
                going.refused = str(error) or repr(error)
                self._place.is_idle.clear()
                self._queue.put(_Wanted(number, going, self))
            raise
        if is_staged:
            self._hand_over(_Wanted(number, going, self))

    def _stage(self, number: int, going: SaveUnderWay, state: Mapping[str, Any]) -> bool:
        """Copies the state into the arena.  False: this save is skipped."""
        whole = state_of(state)
        is_room = self._wait_for_arena()
        waited_s = time.perf_counter() - going.begin_s
        root = self._room(whole) if is_room else None
        if root is None:
            self._ledger.know(number, going.save, is_skipped=True)
            log.warning(
                "step %d is not saved: no room on %s, or the save before is still being written",
                going.handle.step, self._tiers.root,
            )  # fmt: skip
            going.handle._skip()
            return False
        going.root = root
        if whole:
            snapshot = self._snapshot_for(whole)
            copy_span = recorder.begin("snapshot", going.handle.step)
            try:
                going.taken = snapshot.take(whole)
                if going.taken.is_new:  # an error belongs to the call that asked
                    going.content = snapshot.pickled(going.taken)
            finally:
                if copy_span is not None:
                    copy_span.end()
        going.handle.staged.set_result(None)
        going.save = replace(
            going.save,
            block_s=time.perf_counter() - going.begin_s,
            waited_s=waited_s,
            is_first=going.taken is not None and going.taken.is_new,
            is_blocking=self._will_block,
        )
        self._ledger.know(number, going.save)
        return True

    def _hand_over(self, wanted: _Wanted) -> None:
        try:
            self._free.clear()
            self._place.is_idle.clear()
            self._queue.put(wanted)
        except BaseException:  # Ctrl-C: nobody else would free the arena; done twice is done once
            self._queue.put(wanted)
            raise
        if not self._thread.is_alive():  # since a moment ago
            self._end_following("the thread that follows saves has ended")
        if wanted.going.save.is_blocking:
            self._await_local(wanted.going)

    def _await_local(self, going: SaveUnderWay) -> None:
        """In a save that blocks.  Where that was our own choice, no longer than saves take: of many
        ranks one may come to this save only when it has heard from another, which waits here."""
        if self._world.size == 1 or self._cheaper.mode != "auto":
            self._await_arena()
            return
        if self._await_arena(LEAST_BLOCK_S + LONGEST_BLOCK * self._ledger.longest_local_s()):
            return
        self._cheaper, self._will_block = Cheaper("background"), False
        with self._lock:
            block_s = time.perf_counter() - going.begin_s
            going.save = replace(going.save, block_s=block_s, is_blocking=False)
        log.warning(
            "step %d is not local after %.1f s, as if ranks waited for one another; this one's "
            "saves go on in the background from here on",
            going.handle.step, block_s,
        )  # fmt: skip

    def _raise_here(self, handle: Handle) -> None:
        """Raise the error of a blocking save in the save itself, not in the next save."""
        error = handle.local.exception() if handle.local.done() else None
        if error is not None and self._on_error == "raise":
            self._failed = None if self._failed is error else self._failed
            raise error

    def _wait_for_arena(self) -> bool:
        """Whether the arena is free; with on_full "skip" and one rank, without waiting."""
        if self._on_full == "skip" and self._world.size == 1 and self._thread.is_alive():
            return self._free.is_set()
        return self._await_arena()

    def _await_arena(self, longest_s: float = math.inf) -> bool:
        """Whether the arena is free by then.  Raises SaveError: it never will be."""
        end_s = time.monotonic() + longest_s
        while self._thread.is_alive():
            if self._free.wait(LOOK_S):
                return True
            if time.monotonic() > end_s:
                return False
        raise SaveError(
            "the thread that follows saves has ended; close() this Checkpointer and make another"
        )

    def _first_drain(self, rate: str | None) -> Drain | None:
        """Where there can be none, the folder is left to the next Checkpointer of this process."""
        try:
            return self._started_drain(rate)
        except BaseException:
            self._end_writer()
            raise

    def _started_drain(self, rate: str | None) -> Drain | None:
        """Of rank 0, where there is a tier to drain to."""
        tiers = self._tiers
        if tiers.fast is None or tiers.slow is None or self._world.rank != 0:
            return None
        return drain_beside(tiers.root, tiers.slow.url, self._keep, rate)

    def _room(self, whole: Mapping[str, Any]) -> str | None:
        """The folder to save to; None: there is no room, and the save is to be skipped.  Of many
        ranks the first one waits for room, and the others for it."""
        if self._world.rank != 0:
            return self._tiers.root
        size_bytes = max(size_of(whole), self._ledger.last_bytes())
        return self._tiers.room(int(size_bytes * GROWTH), self._keep, self._on_full)

    def _prune(self) -> None:
        """Where a drain is at work, it does."""
        if self._is_pruning and self._drain is None and self._world.rank == 0:
            try:
                self._tiers.prune(self._keep)
            except PenstockError as error:
                log.warning("%s", error)

    def _snapshot_for(self, state: Mapping[str, Any]) -> TorchSnapshot | ArraySnapshot:
        wanted = TorchSnapshot if holds_tensors(state) else ArraySnapshot
        if not isinstance(self._snapshot, wanted):
            if self._snapshot is not None:
                self._snapshot.close()
            is_torch = wanted is TorchSnapshot
            self._snapshot = TorchSnapshot(self._weights_only) if is_torch else ArraySnapshot()
        return self._snapshot

    def _job(self, going: SaveUnderWay, content: bytes) -> WriterJob:
        world, taken = self._world, going.taken
        job = WriterJob(
            root=going.root, step=going.handle.step, file="", kind="torch", n_content=len(content),
            metrics=going.metrics, rank=world.rank, world_size=world.size, token=self._token,
            timeout_s=self._rank_timeout_s, is_empty=taken is None,
            will_block=self._cheaper.is_blocking,
        )  # fmt: skip
        if taken is None:
            return job
        if isinstance(self._snapshot, TorchSnapshot):
            name = loading.file_of_rank(TorchSnapshot.file, world.rank, world.size)
            return replace(job, file=name, sizes=list(taken.sizes))
        return replace(
            job,
            kind="safetensors",
            file=loading.file_of_rank(ArraySnapshot.file, world.rank, world.size),
            beside=loading.file_of_rank(SCALARS_FILE, world.rank, world.size),
            body_bytes=taken.layout.size_bytes,
        )

    # In the background

    def _look(self) -> None:
        try:
            self._tend_drain()
            self._look_for_durable()
        except (TierError, OSError) as error:  # a tier that is gone for an hour ends nothing
            log.warning("which saves are durable cannot be seen; looked for again: %s", error)
        except Exception as error:  # unforeseen: it would come again at every look
            log.error("what becomes durable is not known any more: %r", error)
            self._fail_pending(f"it is not known whether it is durable: {error!r}")

    def _fail_pending(self, why: str) -> None:
        """Nobody looks any more for what is not durable yet: a drain that goes on makes it so."""
        while self._pending:
            self._has_given_up = True
            _, going = self._pending.pop()
            self._failed = SaveError(f"step {going.handle.step}: {why}")
            going.handle._fail(self._failed)

    def _end_following(self, why: str) -> None:
        """The thread has ended: no future of a save is left for it."""
        while not self._queue.empty():
            with suppress(queue.Empty):
                one = self._queue.get_nowait()
                if isinstance(one, _Wanted):
                    one.going.handle._fail(SaveError(f"step {one.going.handle.step}: {why}"))
        self._fail_pending(why)

    def _idle_s(self) -> float | None:
        """How long nothing needs to be looked at; None: until the next save."""
        return LOOK_S if self._pending else TEND_S if self._drain is not None else None

    def _do(self, number: int, going: SaveUnderWay) -> None:
        """One save: pickle, hand over, wait; then what became durable."""
        if going.refused:
            self._tell_refused(going, going.refused)
            return
        if going.handle.local.done():  # handed over twice
            return
        try:
            self._write(number, going)
        except PenstockError as error:
            self._fail(number, going, error)
        except BaseException as error:
            self._fail(number, going, SaveError(f"step {going.handle.step}: {error!r}"))
            if not isinstance(error, Exception):
                raise
        finally:
            self._free.set()
        try:
            self._learn_costs()  # of those before, beside whose writing steps have ended
            self._ledger.note_costs(self._tiers.has_both)
            self._prune()  # which may read: the next save does not wait for that
            if number == 0 and self._world.rank == 0 and (said := self._tiers.others()):
                log.warning("%s", said)
        except Exception as error:  # the save stands, and the next one is to be followed
            log.error("after step %d: %r", going.handle.step, error)
        self._look()

    def _tend_drain(self) -> None:
        """A drain that was killed, or gave up, is said and started again, ever less often."""
        if self._drain is None or self._drain.is_alive():
            return
        if time.monotonic() < self._restart_s:
            return
        self._restart_s = time.monotonic() + self._restart_after_s
        self._restart_after_s = min(2 * self._restart_after_s, MOST_RESTART_S)
        self._n_restarts += 1
        log.error(
            "the drain to %s has ended: %s; %d checkpoints are on %s only; it is started again; "
            "its last words are in %s",
            self._tiers.slow.url if self._tiers.slow is not None else "", self._drain.how_ended(),
            len(self._pending), self._tiers.root, self._drain_log(),
        )  # fmt: skip
        try:
            self._drain = self._started_drain(self._rate)
        except PenstockError as error:
            log.error("%s", error)

    def _fail(self, number: int, going: SaveUnderWay, error: PenstockError) -> None:
        self._failed = error
        try:
            log.error("%s", of_step(going.handle.step, error))
            self._ledger.know(number, going.save, error=str(error))
        finally:
            going.handle._fail(error)

    def _write(self, number: int, going: SaveUnderWay) -> None:
        content = going.content
        if content is None:
            content = b""
            if going.taken is not None and self._snapshot is not None:
                try:
                    content = self._snapshot.pickled(going.taken)
                except Exception as error:
                    why = error if isinstance(error, SaveError) else repr(error)
                    said = of_step(going.handle.step, why, " was not saved:")
                    self._tell_refused(going, said)
                    raise SaveError(said) from error
        arena = going.taken.arena if going.taken is not None else None
        done = self._written(self._job(going, content), content, arena)
        going.end_s = time.perf_counter()
        self._ledger.busy[number] = (going.begin_s, going.end_s)
        if done.error:
            raise SaveError(of_step(going.handle.step, done.error, " was not saved:"))
        local_s = going.end_s - going.begin_s
        with self._lock:  # the caller, if it blocks, may cease to
            going.save = replace(
                going.save,
                block_s=local_s if going.save.is_blocking else going.save.block_s,
                local_s=local_s,
                size_bytes=done.size_bytes,
                path=done.path,
            )
        self._ledger.know(number, going.save)
        if self._world.size > 1 and self._cheaper.mode == "auto":
            self._will_block = done.will_block
        if not going.save.is_first:  # what making the arena costs is paid once
            self._unlearnt.append(number)
        going.handle.local.set_result(done.path)
        if not self._tiers.has_both or going.root != self._tiers.root:
            self._durable(number, going, done.path)
        else:
            going.content_id, _ = content_at(done.path)
            going.local_unix_s = time.time()
            self._pending.append((number, going))

    def _written(self, job: WriterJob, content: bytes, arena: Arena | None) -> WriterResult:
        """What the writer says of a job.  Raises SaveError: it is gone."""
        if self._writer is None:
            self._start_writer()
        assert self._writer is not None
        try:
            self._writer.begin(job, content, arena)
            return self._writer.finished()
        except BaseException:  # what it would say next may be of this job
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.close(0.0)
            raise

    def _tell_refused(self, going: SaveUnderWay, why: str) -> None:
        """To the other ranks: there will be no part of this one."""
        if self._world.size == 1:
            return
        job = WriterJob(
            root=self._tiers.root, step=going.handle.step, file="", kind="", n_content=0,
            refused=why,
        )  # fmt: skip
        try:
            self._written(job, b"", None)
        except PenstockError as error:  # then its lock tells them
            log.warning("%s", error)

    def _look_for_durable(self) -> None:
        """Which of those that are local have arrived, by the slow tier's own manifests; and which
        never will: given up by the rules after they had arrived unseen, kept on fast only, or
        spoilt there.  Raises TierError."""
        # Other ranks hear of the first one's, by the clock of its node.
        drain = self._drain
        status = drain.status() if drain is not None else read_status(self._tiers.root)
        status = status or DrainStatus()
        for number, going in list(self._pending):
            end = self._arriving.end_of(going, status, drain is not None)
            if end is not None:
                self._end_way(number, going, end)
                self._pending.remove((number, going))

    def _end_way(self, number: int, going: SaveUnderWay, end: Arrival) -> None:
        self._has_given_up |= end.is_unread
        if end.path is not None:
            self._durable(number, going, end.path)
        elif end.error:
            self._spoilt(number, going, end.error)
        else:
            going.handle.durable.set_result(None)

    def _spoilt(self, number: int, going: SaveUnderWay, why: str) -> None:
        self._failed = SaveError(
            f"{going.save.path}: {why}; it is not known to be on the slow tier; look after the "
            "fast one, and save again"
        )
        log.error("%s", self._failed)
        self._ledger.know(number, going.save, error=str(self._failed))
        going.handle._fail(self._failed)

    def _durable(self, number: int, going: SaveUnderWay, path: str) -> None:
        end_s = time.perf_counter()
        self._ledger.drained[number] = (going.begin_s, end_s)
        self._n_restarts, self._restart_after_s = 0, LEAST_RESTART_S
        self._ledger.know(number, going.save, durable_s=end_s - going.begin_s)
        going.handle.durable.set_result(path)

    def _learn_costs(self) -> None:
        """Which way the next save goes, by what the last ones have cost rank 0: what holds up
        another one's steps does so with its own, where they meet in each."""
        if self._world.rank != 0:
            return
        for number, save in self._ledger.with_lost(list(self._unlearnt)):
            if save.lost_s is not None and save.local_s is not None:
                self._unlearnt.remove(number)
                said = self._cheaper.learn(save.is_blocking, save.lost_s, save.local_s)
                if self._world.size == 1:
                    self._will_block = self._cheaper.is_blocking
                if said:
                    log.info("%s", said)

    # What it costs

    def tick(self) -> None:
        """A step of the training has ended.  Called by itself where torch's optimizers step."""
        self._ledger.steps.append(time.perf_counter())

    @property
    def saves(self) -> tuple[Save, ...]:
        """The last saves in their order, with what is known of each by now."""
        return self._ledger.saves

    def at_risk(self) -> AtRisk:
        """What would be lost if the node died now."""
        return self._ledger.at_risk(len(self._pending))

    # Restoring

    def restore(self, state: MutableMapping[str, Any], default: int | None = None) -> int:
        """Loads the newest checkpoint that is whole, from whichever tier, into `state`.

        Things with load_state_dict() get theirs, tensors and NumPy arrays are filled in place,
        other values of the mapping are replaced.  Returns its step; `default` where there is no
        checkpoint at all.  Which it was, and why not a newer one, is in self.restored and in the
        log "penstock.save".  A save of this Checkpointer that is still being written is awaited.
        Called by all ranks.

        Raises SaveError: there is none and no default; those that are there are not whole; it does
        not fit the program (nothing older is tried: it would fit no better).
        """
        self._refuse_closed()
        span = recorder.begin("restore", self._n_saves)
        try:
            self._await_arena()
            chosen, found = self._restorer.loaded(default)
            if chosen.path is None:
                assert default is not None
                return default
            loading.apply(found, state, str(chosen.path))
            log.info("restored step %s from %s", chosen.step, chosen.path)
            return chosen.step or 0
        finally:
            if span is not None:
                span.end()

    @property
    def restored(self) -> Chosen | None:
        """The choice of the last restore(), with the checkpoints that were passed over."""
        return self._restorer.chosen

    # The end

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until every save is durable.  False: one was not within timeout_s, or has failed
        since the last save()."""
        begun_s = time.monotonic()
        end_s = None if timeout_s is None else begun_s + timeout_s
        said_s, is_told = 0.0, self._progress is not None
        while not self._free.is_set() or self._queue.qsize() or self._pending:
            if not self._thread.is_alive() or (end_s is not None and time.monotonic() > end_s):
                return False
            if self._n_restarts >= RESTARTS_AWAITED:
                log.error("the drain ends again and again; it says why in %s", self._drain_log())
                return False
            if self._progress is not None and time.monotonic() - said_s > 1.0:
                said_s = time.monotonic()
                self._progress(f"{len(self._pending)} checkpoints on their way to the slow tier")
            if not is_told and time.monotonic() - begun_s > TOLD_AFTER_S:
                is_told = True
                self._tell_waiting()
            time.sleep(0.02)
        return self._failed is None

    def _tell_waiting(self) -> None:
        status = self._drain.status() if self._drain is not None else None
        log.warning(
            "waiting until %d checkpoints of %s are durable%s; drain_timeout_s bounds that at the "
            "end, and the drain goes on without us",
            len(self._pending), self._tiers.root,
            f" (the drain: {status.state}{f', {status.error}' if status.error else ''})"
            if status else "",
        )  # fmt: skip

    def _drain_log(self) -> str:
        return os.path.join(self._tiers.root, STATE, "drain.log")  # noqa: PTH118 - for a message

    def close(self) -> None:
        """Waits for the last save, and drain_timeout_s for the drain, which goes on by itself
        after that.  Safe to call again."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._close()
        finally:
            self._place.is_closed.set()
            openplaces.forget(self._place)

    def _close(self) -> None:
        with ExitStack() as ending:  # each of them, the last one first, whatever another meets
            for end in (
                self._end_pending, self._end_snapshot, self._end_drain, self._end_writer,
                self._end_notes, self._end_thread,
            ):  # fmt: skip
                ending.callback(end)
            self._forget_steps()
            with suppress(SaveError):  # a thread that has ended has told each handle so
                self._await_arena()
            if self._drain is not None or self._pending:
                self.wait(self._drain_timeout_s)

    def _end_thread(self) -> None:
        if threading.current_thread() is not self._thread:
            self._queue.put(None)
            self._thread.join()

    def _end_notes(self) -> None:
        self._ledger.note_costs(self._tiers.has_both)
        self._ledger.note_life(end_unix_ns=time.time_ns(), pending=len(self._pending))

    def _end_writer(self) -> None:
        if self._writer is not None:
            self._writer.close(CLOSE_WRITER_S)

    def _end_drain(self) -> None:
        if self._drain is not None and not self._pending and not self._has_given_up:
            self._drain.stop()  # else it goes on, for as long as it takes

    def _end_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()

    def _end_pending(self) -> None:
        self._end_following("closed before it was on the slow tier")

    def abandon(self) -> None:
        """Nobody waits for what is staged but the disk."""
        self._drain_timeout_s = 0.0
        self.close()

    def __del__(self) -> None:
        # Wherever the collector runs, locks may be held: the thread closes what it finds here.
        place = getattr(self, "_place", None)  # none: its making has failed
        if place is not None and not self._is_closed and place.pid == os.getpid():
            self._is_abandoned = True
            self._queue.put(self)

    @property
    def is_open(self) -> bool:
        """Whether the program has neither closed it nor lost sight of it."""
        return not (self._is_closed or self._is_abandoned)

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise SaveError("this Checkpointer is closed; make another one")

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self._drain_timeout_s = (
                0.0  # the program is failing: what is staged is written, no more
            )
        self.close()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A save that is to be written."""

    number: int
    going: SaveUnderWay
    of: Checkpointer


def opened(root: AnyPath, rank: int = 0) -> Checkpointer | None:
    """The Checkpointer of this process that saves to this folder, and is not closed."""
    found = openplaces.find_open(os.path.realpath(root), rank)
    return found if isinstance(found, Checkpointer) else None


def _follow(place: OpenPlace, wanted: queue.SimpleQueue[_Wanted | Checkpointer | None]) -> None:
    """One save after another, and between them what became durable."""
    try:
        _follow_all(place, wanted)
    except BaseException as error:
        ours = _saver_at(place)
        if ours is not None:
            ours._end_following(f"the thread that follows saves has ended: {error!r}")
        log.critical("the thread that follows saves has ended: %r", error)


def _follow_all(place: OpenPlace, wanted: queue.SimpleQueue[_Wanted | Checkpointer | None]) -> None:
    idle_s: float | None = TEND_S
    while True:
        if wanted.empty():
            place.is_idle.set()
        try:
            one = wanted.get(timeout=idle_s)
        except queue.Empty:
            ours = _saver_at(place)
            if ours is not None:
                ours._look()
                idle_s = ours._idle_s()
            del ours
            continue
        if one is None:
            return
        if isinstance(one, Checkpointer):
            place.is_idle.set()
            one.abandon()
            return
        one.of._do(one.number, one.going)
        idle_s = one.of._idle_s()
        del one


def _saver_at(place: OpenPlace) -> Checkpointer | None:
    found = place.target()
    return found if isinstance(found, Checkpointer) else None


def _numbers(metrics: Any) -> dict[str, float]:
    """Raises SaveError."""
    try:
        return {str(key): float(value) for key, value in dict(metrics or {}).items()}
    except (TypeError, ValueError):
        raise SaveError(
            f"metrics={metrics!r}: numbers by name, as metrics={{'loss': 0.3}}"
        ) from None
