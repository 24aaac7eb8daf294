"""torch.distributed.checkpoint through a fast and a slow tier: sharded states, any number of ranks.

    dcp.save(state, storage_writer=TieredWriter(fast, slow, step))
    dcp.async_save(state, storage_writer=TieredWriter(fast, slow, step), async_stager=stager)
    reader = TieredReader.latest(fast, slow)
    dcp.load(state, storage_reader=reader)          # reader.step

What is torch's stays torch's: plans, shards, resharding, its files.  Ours is when a checkpoint
counts: torch syncs its metadata before it flushes them, and writes into folders that are in use.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

from penstock.errors import PenstockError, SaveError, TierError
from penstock.save.commit import DraftCheckpoint, abort, begin, commit, join, sum_of
from penstock.save.drain.retention import Keep, full_said
from penstock.save.drain.tiered import Tiers, claim_for_process, drain_beside, from_text, to_text
from penstock.save.training.ranks import found_world

__all__ = ["TieredReader", "TieredWriter"]

AnyPath = str | os.PathLike[str]
DISTCP = "__"  # begins the name of each rank's file: __RANK_NUMBER.distcp


# Parts begun by this process, with its own files written, by folder and step.
_written: dict[tuple[str, int], DraftCheckpoint] = {}


@dataclass(frozen=True)
class _Place:
    """The coordinator's message to each rank with its plan.  prefix: as in torch's own plan."""

    prefix: str
    name: str


class TieredWriter(FileSystemWriter):  # type: ignore[misc]  # torch is not type-checked here
    """Writes a step to `fast`; the step counts once all ranks' files, the metadata and a manifest
    are synced.  A process of rank 0 drains the step to `slow`.

    keep, drain: see Checkpointer.  Other arguments are FileSystemWriter's; thread_count writes with
    several threads.  Raises SaveError, TierError, through DCP's CheckpointException.
    """

    def __init__(
        self,
        fast: AnyPath,
        slow: AnyPath | None,
        step: int,
        *,
        keep: Keep | None = None,
        drain: str | None = None,
        **options: Any,
    ) -> None:
        self._root = Tiers.of(fast, slow).root
        self._step = int(step)
        self._part: DraftCheckpoint | None = None  # of the coordinator
        self._n_ranks = 1
        # All files are synced once, when summed.
        super().__init__(Path(self._root) / "unbegun", sync_files=False, overwrite=False, **options)
        if found_world().rank == 0:
            claim_for_process(self._root)
        if slow is not None and found_world().rank == 0:
            drain_beside(fast, slow, keep, drain)

    def reset(self, checkpoint_id: AnyPath | None = None) -> None:
        super().reset(None)  # the step is the name

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        if kwargs.get("use_collectives", True) is False:
            raise SaveError("use_collectives=False: ranks that do not speak make no checkpoint")

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Begin the part in the coordinator, and send its name with the plans."""
        import dataclasses

        self._n_ranks = len(plans)
        before = _written.pop(self._part_key(), None)
        if before is not None:  # another rank has failed, which torch does not report to writers
            abort(before)
        self._part = part = begin(self._root, self._step)
        return [
            dataclasses.replace(plan, storage_data=_Place(f"{DISTCP}{rank}_", part.name))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            written = self._write_plan(plan, planner)
        except BaseException:
            self._give_part_up()
            raise
        if self._part is not None:
            _written[self._part_key()] = self._part
        return written

    def _write_plan(self, plan: Any, planner: Any) -> Any:
        place: _Place = plan.storage_data
        part = join(self._root, place.name, self._step)
        self.path = part.path
        with full_said(part.path):
            written = super().write_data(plan, planner)
            written.wait()
        for path in sorted(part.path.glob(f"{place.prefix}*")):
            part.sums[path.name] = sum_of(part.path, path.name, is_synced=False)
        part.hand_in()
        return written

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        """Of the coordinator, when all ranks have written."""
        part = self._part
        assert part is not None
        self.path = part.path
        try:
            with full_said(part.path):
                super().finish(metadata, results)
            self.path = commit(part, world_size=self._n_ranks, kind="dcp")
        except BaseException:
            self._give_part_up()
            raise
        self._forget_part()

    def _give_part_up(self) -> None:
        """Remove the coordinator's part: the step can be saved again, and its room is free."""
        part = self._forget_part()
        if part is not None:
            with suppress(TierError):  # the next start sweeps it
                abort(part)

    def _forget_part(self) -> DraftCheckpoint | None:
        part, self._part = self._part, None
        if part is not None and _written.get(key := self._part_key()) is part:
            del _written[key]
        return part

    def _part_key(self) -> tuple[str, int]:
        return os.path.realpath(self._root), self._step


class TieredReader(FileSystemReader):  # type: ignore[misc]  # torch is not type-checked here
    """Reads the checkpoint chosen by latest(). step: its step.  rejected: newer checkpoints, with
    the reasons."""

    def __init__(
        self, path: AnyPath, step: int | None = None, rejected: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(path)
        self.step = step
        self.rejected = rejected

    @classmethod
    def latest(
        cls, fast: AnyPath | None, slow: AnyPath | None = None, level: str = "full"
    ) -> TieredReader | None:
        """Return a reader of the newest whole checkpoint on any tier; None: no checkpoint at all.

        All ranks call this, and get the same checkpoint.  Raises SaveError: no checkpoint is whole.
        """
        world = found_world()
        said = ""
        if world.rank == 0:
            try:
                said = to_text(
                    Tiers.of(fast, slow).choose(level, lambda checkpoint: checkpoint.kind == "dcp")
                )
            except PenstockError as error:
                said = f"!{error}"
        said = world.agreed(said)
        if said.startswith("!"):
            raise SaveError(said[1:])
        chosen = from_text(said)
        if chosen.path is None:
            if chosen.rejected:
                reasons = "; ".join(f"{place}: {why}" for place, why in chosen.rejected)
                raise SaveError(f"no checkpoint is whole: {reasons}")
            return None
        return cls(chosen.path, chosen.step, chosen.rejected)
