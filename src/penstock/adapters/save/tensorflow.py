"""tf.train.Checkpoint through a fast and a slow tier: as tf.train.CheckpointManager.

manager = TieredCheckpointManager(tf.train.Checkpoint(model=model, optimizer=optimizer),
                                  directory=slow, fast=fast, max_to_keep=3)
manager.restore_or_initialize()
manager.save()
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from penstock.errors import SaveError
from penstock.save.checkpoint import Checkpoint, step_of
from penstock.save.drain.adopting import adopt_files, forget_orphans
from penstock.save.drain.retention import Keep, full_said
from penstock.save.drain.tiered import Tiers, claim_for_process, drain_beside
from penstock.save.find.formats import find

__all__ = ["TieredCheckpointManager"]

GROWTH = 1.05  # from one save to the next, at most

AnyPath = str | os.PathLike[str]


class TieredCheckpointManager:
    """A CheckpointManager through two tiers.  checkpoint, directory, checkpoint_name, step_counter:
    as in CheckpointManager.

    max_to_keep: on the fast tier, where older checkpoints go once verified on the slow tier; keep=
    rules the slow tier.  A save waits for the drain while the fast tier has no room.  TensorFlow
    writes its own files to `fast`, blocking; the files are then synced (TensorFlow omits the sync),
    get a manifest, and are drained to `directory`.
    """

    def __init__(
        self,
        checkpoint: Any,
        directory: AnyPath,
        max_to_keep: int = 3,
        *,
        fast: AnyPath,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        keep: Keep | None = None,
        drain: str | None = None,
    ) -> None:
        self._tiers = Tiers.of(fast, directory)
        self._fast = Path(self._tiers.root)
        self._fast.mkdir(parents=True, exist_ok=True)
        claim_for_process(self._fast)
        self._checkpoint = checkpoint
        if max_to_keep < 1:
            raise SaveError(f"max_to_keep is 1 or more, not {max_to_keep!r}")
        # TensorFlow would remove, by its own count, checkpoints that are not drained yet.
        self._manager = tf.train.CheckpointManager(
            checkpoint, str(self._fast), None,
            checkpoint_name=checkpoint_name, step_counter=step_counter,
        )  # fmt: skip
        self._keep = replace(keep or Keep(), fast=max_to_keep)
        self._slow, self._drain = directory, drain
        drain_beside(fast, directory, self._keep, drain)

    @property
    def checkpoint(self) -> Any:
        return self._checkpoint

    @property
    def latest_checkpoint(self) -> str | None:
        """Return the newest whole checkpoint on any tier, with every block's checksum compared;
        None: there is none."""
        chosen = self._tiers.choose("full", lambda checkpoint: checkpoint.kind == "tensorflow")
        return None if chosen.path is None else str(chosen.path)

    @property
    def checkpoints(self) -> list[str]:
        """Return the checkpoints on the fast tier, oldest first."""
        return [str(self._fast / checkpoint.name) for checkpoint in self._found()][::-1]

    def _found(self) -> list[Checkpoint]:
        """On the fast tier, newest first."""
        assert self._tiers.fast is not None
        return [
            checkpoint for checkpoint in find(self._tiers.fast) if checkpoint.kind == "tensorflow"
        ]

    def save(self, checkpoint_number: int | None = None, **options: Any) -> str | None:
        """Write a checkpoint; return its path on the fast tier.  Raises TierError, TierFull."""
        wanted_bytes = max((checkpoint.size_bytes for checkpoint in self._found()[:1]), default=0)
        self._tiers.room(int(wanted_bytes * GROWTH), self._keep, "wait")
        with full_said(self._fast):
            path: str | None = self._manager.save(checkpoint_number, **options)
        if path is None:
            return None
        prefix = Path(path)
        files = [file.name for file in prefix.parent.glob(f"{prefix.name}.*")]
        step = checkpoint_number if checkpoint_number is not None else step_of(prefix.name)
        adopt_files(prefix.parent, prefix.name, files, step, "tensorflow")
        forget_orphans(prefix.parent)
        drain_beside(self._fast, self._slow, self._keep, self._drain)
        return path

    def restore_or_initialize(self) -> str | None:
        """Restore latest_checkpoint into the objects; return its path, or None if there was
        none."""
        latest = self.latest_checkpoint
        if latest is not None:
            self._checkpoint.restore(latest)
        return latest
