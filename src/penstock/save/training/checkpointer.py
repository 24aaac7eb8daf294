"""Save a training: a snapshot blocks, a second process writes, a third process drains.

    from penstock.save import Checkpointer, Keep

    ckpt = Checkpointer(fast="/nvme/run1", slow="/lustre/run1", keep=Keep(fast=2, last=3))
    step = ckpt.restore({"model": model, "optim": optim}, default=0)
    for step in range(step, n_steps):
        ...
        if step % 500 == 0:
            ckpt.save(step, {"model": model, "optim": optim})   # blocks for a copy in memory
    ckpt.close()                                                # or `with ckpt:`

The module knows the order and the overhead of the operations.  Other modules of the folder know the
layout of files, the rules for a committed and a whole checkpoint, and the way to the slow tier.
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
from penstock.save.commit import STATE
from penstock.save.drain.beside import Drain
from penstock.save.drain.retention import Keep
from penstock.save.drain.tiered import Chosen, Tiers, content_at, drain_beside
from penstock.save.drain.working import DrainStatus, read_status
from penstock.save.training import loading, openplaces
from penstock.save.training.arena import Arena
from penstock.save.training.arguments import of_step, refuse_wrong, refuse_wrong_numbers, whole_step
from penstock.save.training.arriving import Arrival, Arriving
from penstock.save.training.handle import AtRisk, Handle, Save, SaveUnderWay
from penstock.save.training.ledger import Ledger, watch_steps
from penstock.save.training.lost import Cheaper
from penstock.save.training.openplaces import CLOSE_WRITER_S, OpenPlace
from penstock.save.training.ranks import World, found_world
from penstock.save.training.restoring import Restorer
from penstock.save.training.snapshot import (
    SCALARS_FILE,
    ArraySnapshot,
    TorchSnapshot,
    holds_tensors,
    size_of,
    state_of,
)
from penstock.save.training.writer import Writer, WriterJob, WriterResult

__all__ = ["AtRisk", "Checkpointer", "Handle", "Save", "opened"]

AnyPath = str | os.PathLike[str]
GROWTH = 1.05  # highest growth in size from a save to the next
LOOK_S = 0.2  # time between two searches for manifests on the slow tier


# Longest block in mode "auto" with many ranks: seconds, plus a multiple of the longest save.
LEAST_BLOCK_S, LONGEST_BLOCK = 2.0, 4
SAVES_LEARNT = 2  # last saves of unknown overhead to measure: each needs a walk over all steps
TEND_S = 2.0  # time between two checks that the drain is alive
LEAST_RESTART_S, MOST_RESTART_S = 2.0, 60.0  # delay between starts of a failing drain, doubled
RESTARTS_AWAITED = 4  # restarts of the drain after which wait() and close() give up
TOLD_AFTER_S = 10.0  # wait for the drain before a warning, in a program without a progress call
log = logging.getLogger("penstock.save")


class Checkpointer:
    """Save and restore the state of a training through a fast and a slow tier.

    fast: a folder on a local disk, or None for no fast tier.  slow: a folder or an fsspec URL, or
    None for no slow tier.  keep: how many checkpoints stay on each tier.  drain: a rate such as
    "300MB/s"; None: no limit.
    on_full: the action of a save while the fast tier has no room, or the save before is still being
    written: "wait", "skip" or "direct" (write to the slow tier, which must be a folder).
    on_error: the action of save() if a tier is full or an earlier background save has failed:
    "raise" the error once, or "warn".
    mode: "background", "blocking" (save() returns when the checkpoint is local), or "auto" (rank 0
    chooses the mode with the lower overhead; needs the times of steps, see tick).
    level: how thoroughly restore() checks: "full" (every byte; damaged checkpoints are rejected),
    "sample" or "sizes".  weights_only: as in torch.load.
    world: the ranks; default: found through torch.distributed or MPI.  rank_timeout_s: longest wait
    for other ranks in a save.  drain_timeout_s: longest wait of close() for the drain; None: until
    every save is durable.

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
        # The mode of the next save, which rank 0 sends with the save before.
        self._will_block = self._cheaper.is_blocking
        self._unlearnt: deque[int] = deque(maxlen=SAVES_LEARNT)  # saves of unknown overhead
        self._failed: PenstockError | None = None
        self._free = threading.Event()  # set while no save uses the arena
        self._free.set()
        # The thread refers to the Checkpointer only during a save, so a Checkpointer that the
        # program has lost can be closed.  None: no more saves.
        self._queue: queue.SimpleQueue[_Wanted | Checkpointer | None] = queue.SimpleQueue()
        self._pending: list[tuple[int, SaveUnderWay]] = []  # local, and not durable yet
        self._is_closed = self._is_abandoned = False
        self._has_given_up = False  # on saves that the drain may still have to copy
        self._arriving = Arriving(self._tiers)
        self._restorer = Restorer(self._tiers, self._world, level, weights_only)
        self._start_writer()
        self._rate = drain
        self._restart_s, self._restart_after_s = 0.0, LEAST_RESTART_S
        self._n_restarts = 0  # since the last save became durable
        self._drain = self._first_drain(drain)
        self._ledger.note_life(**self._where_told())
        self._settle()

    def _settle(self) -> None:
        """Start the thread for saves, and register this object by a weak reference."""
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
        """Raise SaveError if an open Checkpointer of this process holds the folder."""
        where = self._where()
        if opened(*where) is not None:
            for place in openplaces.places_at(*where):
                place.is_idle.wait(CLOSE_WRITER_S)
            gc.collect()  # an unreachable Checkpointer, in a reference cycle, counts as closed
        if opened(*where) is not None:
            raise SaveError(
                f"{self._tiers.root}: a Checkpointer of this process has this folder: close() the "
                "first (as before a cell of a notebook is run again), or go on with it"
            )
        for place in openplaces.places_at(*where):
            place.is_closed.wait(CLOSE_WRITER_S)

    def _ready_tiers(self) -> None:
        """Make the folders on rank 0; all ranks must see the folders.  Raises TierError."""
        error = ""
        if self._world.rank == 0:
            try:
                self._tiers.make(self._token)
            except PenstockError as refusal:
                error = str(refusal)
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
        said = self._writer.finished()  # the first result: the tier is claimed, or an error
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
        """Copy the state, and return while another process writes the copy.

        state: objects with a state_dict(), tensors, arrays, containers of tensors or arrays, plain
        values.  None or an empty state: this rank has no state of its own to save.  All ranks call
        save(), with equal steps.  metrics: numbers to store with the checkpoint.

        Raises SaveError: a value of the state cannot be saved (the message has the path to the
        value), or an earlier save has failed; TierFull.  The training's state is never changed.
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
        if failed is not None:  # raise late: other ranks may know no error, and wait for this rank
            raise failed
        return handle

    def _begin(
        self, number: int, going: SaveUnderWay, state: Mapping[str, Any], metrics: Any
    ) -> None:
        try:
            going.metrics = _numbers(metrics)
            is_staged = self._stage(number, going, state)
        except BaseException as error:
            if self._world.size > 1:  # the other ranks must not wait for this rank
                going.refused = str(error) or repr(error)
                self._place.is_idle.clear()
                self._queue.put(_Wanted(number, going, self))
            raise
        if is_staged:
            self._hand_over(_Wanted(number, going, self))

    def _stage(self, number: int, going: SaveUnderWay, state: Mapping[str, Any]) -> bool:
        """Copy the state into the arena.  Return False if the save is skipped."""
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
                if going.taken.is_new:  # raise a pickling error in this call of save()
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
        except BaseException:  # Ctrl-C: only the thread frees the arena; a second put is harmless
            self._queue.put(wanted)
            raise
        if not self._thread.is_alive():  # the thread ended a moment ago
            self._end_following("the thread that follows saves has ended")
        if wanted.going.save.is_blocking:
            self._await_local(wanted.going)

    def _await_local(self, going: SaveUnderWay) -> None:
        """Wait in a blocking save until the checkpoint is local.

        Many ranks in mode "auto" wait for a limited time, then save in the background: another rank
        may wait for this rank."""
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
        """Return True once the arena is free; one rank with on_full "skip" does not wait."""
        if self._on_full == "skip" and self._world.size == 1 and self._thread.is_alive():
            return self._free.is_set()
        return self._await_arena()

    def _await_arena(self, longest_s: float = math.inf) -> bool:
        """Return True if the arena is free within longest_s.  Raises SaveError: it never will."""
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
        """Start the first drain; if it fails, end the writer, which holds the folder."""
        try:
            return self._started_drain(rate)
        except BaseException:
            self._end_writer()
            raise

    def _started_drain(self, rate: str | None) -> Drain | None:
        """Start the drain on rank 0 of a job with two tiers; None: no drain is needed."""
        tiers = self._tiers
        if tiers.fast is None or tiers.slow is None or self._world.rank != 0:
            return None
        return drain_beside(tiers.root, tiers.slow.url, self._keep, rate)

    def _room(self, whole: Mapping[str, Any]) -> str | None:
        """Return the folder to save to, after rank 0 found room; None: skip the save."""
        if self._world.rank != 0:
            return self._tiers.root
        size_bytes = max(size_of(whole), self._ledger.last_bytes())
        return self._tiers.room(int(size_bytes * GROWTH), self._keep, self._on_full)

    def _prune(self) -> None:
        """Remove checkpoints by the rules, on rank 0.  With a drain, the drain does so instead."""
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
        except (TierError, OSError) as error:  # a tier may be gone for an hour
            log.warning("which saves are durable cannot be seen; looked for again: %s", error)
        except Exception as error:  # unforeseen: every look would repeat the error
            log.error("what becomes durable is not known any more: %r", error)
            self._fail_pending(f"it is not known whether it is durable: {error!r}")

    def _fail_pending(self, why: str) -> None:
        """Fail all saves that are not durable yet; a running drain still copies them."""
        while self._pending:
            self._has_given_up = True
            _, going = self._pending.pop()
            self._failed = SaveError(f"step {going.handle.step}: {why}")
            going.handle._fail(self._failed)

    def _end_following(self, why: str) -> None:
        """Fail the queued and the pending saves, after the thread for saves has ended."""
        while not self._queue.empty():
            with suppress(queue.Empty):
                item = self._queue.get_nowait()
                if isinstance(item, _Wanted):
                    item.going.handle._fail(SaveError(f"step {item.going.handle.step}: {why}"))
        self._fail_pending(why)

    def _idle_s(self) -> float | None:
        """Return the seconds until the next look; None: none before the next save."""
        return LOOK_S if self._pending else TEND_S if self._drain is not None else None

    def _do(self, number: int, going: SaveUnderWay) -> None:
        """Pickle, hand over and await one save; then look for durable saves."""
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
            self._learn_costs()  # of earlier saves: later steps have ended by now
            self._ledger.note_costs(self._tiers.has_both)
            self._prune()  # pruning may read files: the arena is free for the next save
            if number == 0 and self._world.rank == 0 and (said := self._tiers.others()):
                log.warning("%s", said)
        except Exception as error:  # the save counts, and the thread must go on
            log.error("after step %d: %r", going.handle.step, error)
        self._look()

    def _tend_drain(self) -> None:
        """Report a drain that has ended too early, and start it again, with a growing delay."""
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
        with self._lock:  # a blocking caller may stop the wait and change going.save
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
        if not going.save.is_first:  # the first save includes the making of the arena
            self._unlearnt.append(number)
        going.handle.local.set_result(done.path)
        if not self._tiers.has_both or going.root != self._tiers.root:
            self._durable(number, going, done.path)
        else:
            going.content_id, _ = content_at(done.path)
            going.local_unix_s = time.time()
            self._pending.append((number, going))

    def _written(self, job: WriterJob, content: bytes, arena: Arena | None) -> WriterResult:
        """Return the writer's result of a job.  Raises SaveError: the writer has ended."""
        if self._writer is None:
            self._start_writer()
        assert self._writer is not None
        try:
            self._writer.begin(job, content, arena)
            return self._writer.finished()
        except BaseException:  # the writer's next result may belong to this job
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.close(0.0)
            raise

    def _tell_refused(self, going: SaveUnderWay, why: str) -> None:
        """Report to the other ranks that this rank will write no part."""
        if self._world.size == 1:
            return
        job = WriterJob(
            root=self._tiers.root, step=going.handle.step, file="", kind="", n_content=0,
            refused=why,
        )  # fmt: skip
        try:
            self._written(job, b"", None)
        except PenstockError as error:  # then the other ranks see the free lock of the writer
            log.warning("%s", error)

    def _look_for_durable(self) -> None:
        """End the pending saves that have arrived on the slow tier, by the slow tier's manifests,
        and those that never will: the copy is removed already, the rules keep the checkpoint on the
        fast tier only, or it is damaged there.  Raises TierError."""
        # Other ranks read the status of rank 0's drain, with times by the clock of rank 0's node.
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
        """Choose the mode of the next save from rank 0's overhead: ranks wait for each other."""
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

    # Overhead

    def tick(self) -> None:
        """Record the end of a training step.  Penstock calls tick() after each step of the first
        torch optimizer; a program without torch's optimizers calls tick()."""
        self._ledger.steps.append(time.perf_counter())

    @property
    def saves(self) -> tuple[Save, ...]:
        """Return the last saves in order, with the measures known so far."""
        return self._ledger.saves

    def at_risk(self) -> AtRisk:
        """Return the work that would be lost if the node failed now."""
        return self._ledger.at_risk(len(self._pending))

    # Restoring

    def restore(self, state: MutableMapping[str, Any], default: int | None = None) -> int:
        """Load the newest whole checkpoint of both tiers into `state`, and return the step.

        Objects with load_state_dict() are loaded, tensors and NumPy arrays are filled in place,
        other values of the mapping are replaced.  Without any checkpoint the function returns
        `default`.  self.restored and the log "penstock.save" report the chosen checkpoint, and the
        reasons against newer checkpoints.  A save of this Checkpointer that is still being written
        is awaited.  All ranks call restore().

        Raises SaveError: there is no checkpoint and no default; no checkpoint is whole; the
        checkpoint does not fit the program (older checkpoints would not fit either and are not
        tried).
        """
        self._refuse_closed()
        span = recorder.begin("restore", self._n_saves)
        try:
            self._await_arena()
            chosen, content = self._restorer.loaded(default)
            if chosen.path is None:
                assert default is not None
                return default
            loading.apply(content, state, str(chosen.path))
            log.info("restored step %s from %s", chosen.step, chosen.path)
            return chosen.step or 0
        finally:
            if span is not None:
                span.end()

    @property
    def restored(self) -> Chosen | None:
        """Return the choice of the last restore(), with the rejected checkpoints."""
        return self._restorer.chosen

    # The end

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every save is durable.  Return False if a save was not durable within
        timeout_s, or has failed since the last save()."""
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
        """Wait for the last save, and at most drain_timeout_s for the drain, which then goes on
        without this process.  A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._close()
        finally:
            self._place.is_closed.set()
            openplaces.forget(self._place)

    def _close(self) -> None:
        with ExitStack() as ending:  # call each end, in reverse order, despite errors of another
            for end in (
                self._end_pending, self._end_snapshot, self._end_drain, self._end_writer,
                self._end_notes, self._end_thread,
            ):  # fmt: skip
                ending.callback(end)
            self._forget_steps()
            with suppress(SaveError):  # a thread that has ended has failed each handle
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
            self._drain.stop()  # else the drain goes on after this process, for a limited time

    def _end_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()

    def _end_pending(self) -> None:
        self._end_following("closed before it was on the slow tier")

    def abandon(self) -> None:
        """Write the staged save to the disk and close, without a wait for the drain."""
        self._drain_timeout_s = 0.0
        self.close()

    def __del__(self) -> None:
        # The collector may run while locks are held, so the thread closes the Checkpointer.
        place = getattr(self, "_place", None)  # None: the constructor has failed
        if place is not None and not self._is_closed and place.pid == os.getpid():
            self._is_abandoned = True
            self._queue.put(self)

    @property
    def is_open(self) -> bool:
        """Return True if the program has neither closed nor lost this Checkpointer."""
        return not (self._is_closed or self._is_abandoned)

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise SaveError("this Checkpointer is closed; make another one")

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self._drain_timeout_s = 0.0  # the program is failing: write the staged save only
        self.close()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A save for the thread to write."""

    number: int
    going: SaveUnderWay
    of: Checkpointer


def opened(root: AnyPath, rank: int = 0) -> Checkpointer | None:
    """Return the open Checkpointer of this process for a folder; None: there is none."""
    checkpointer = openplaces.find_open(os.path.realpath(root), rank)
    return checkpointer if isinstance(checkpointer, Checkpointer) else None


def _follow(place: OpenPlace, wanted: queue.SimpleQueue[_Wanted | Checkpointer | None]) -> None:
    """Write the saves of a queue in order, and look for durable saves in between."""
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
            job = wanted.get(timeout=idle_s)
        except queue.Empty:
            ours = _saver_at(place)
            if ours is not None:
                ours._look()
                idle_s = ours._idle_s()
            del ours
            continue
        if job is None:
            return
        if isinstance(job, Checkpointer):
            place.is_idle.set()
            job.abandon()
            return
        job.of._do(job.number, job.going)
        idle_s = job.of._idle_s()
        del job


def _saver_at(place: OpenPlace) -> Checkpointer | None:
    target = place.target()
    return target if isinstance(target, Checkpointer) else None


def _numbers(metrics: Any) -> dict[str, float]:
    """Return the metrics as numbers by name.  Raises SaveError."""
    try:
        return {str(key): float(value) for key, value in dict(metrics or {}).items()}
    except (TypeError, ValueError):
        raise SaveError(
            f"metrics={metrics!r}: numbers by name, as metrics={{'loss': 0.3}}"
        ) from None
