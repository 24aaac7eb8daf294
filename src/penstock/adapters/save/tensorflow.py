"""tf.train.Checkpoint through a fast and a slow tier: as tf.train.CheckpointManager.

manager = TieredCheckpointManager(tf.train.Checkpoint(model=model, optimizer=optimizer),
                                  directory=slow, fast=fast, max_to_keep=3)
manager.restore_or_initialize()
manager.save()
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from penstock.save.adopting import adopt_files, forget_orphans
from penstock.save.formats import step_of
from penstock.save.retention import Keep, full_said
from penstock.save.tiered import Tiers, claim_for_process, drain_beside

__all__ = ["TieredCheckpointManager"]

AnyPath = str | os.PathLike[str]


class TieredCheckpointManager:
    """checkpoint, directory, max_to_keep, checkpoint_name, step_counter: as CheckpointManager's;
    max_to_keep counts on the fast tier, keep= rules the slow one.

    TensorFlow writes its own files to `fast`, blocking; they are synced, which TensorFlow leaves
    out, get a manifest, and are drained to `directory`.
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
        self._manager = tf.train.CheckpointManager(
            checkpoint, str(self._fast), max_to_keep,
            checkpoint_name=checkpoint_name, step_counter=step_counter,
        )  # fmt: skip
        self._slow, self._keep, self._drain = directory, keep, drain
        drain_beside(fast, directory, keep, drain)

    @property
    def checkpoint(self) -> Any:
        return self._checkpoint

    @property
    def latest_checkpoint(self) -> str | None:
        """The newest that is whole, on any tier, with every block's checksum compared; None: there
        is none."""
        chosen = self._tiers.choose("full", lambda one: one.kind == "tensorflow")
        return None if chosen.path is None else str(chosen.path)

    @property
    def checkpoints(self) -> list[str]:
        """Those on the fast tier, oldest first."""
        return list(self._manager.checkpoints)

    def save(self, checkpoint_number: int | None = None, **options: Any) -> str | None:
        """Writes a checkpoint; its path on the fast tier.  Raises TierError."""
        with full_said(self._fast):
            path: str | None = self._manager.save(checkpoint_number, **options)
        if path is None:
            return None
        prefix = Path(path)
        files = [one.name for one in prefix.parent.glob(f"{prefix.name}.*")]
        step = checkpoint_number if checkpoint_number is not None else step_of(prefix.name)
        adopt_files(prefix.parent, prefix.name, files, step, "tensorflow")
        forget_orphans(prefix.parent)
        drain_beside(self._fast, self._slow, self._keep, self._drain)
        return path

    def restore_or_initialize(self) -> str | None:
        """Restores latest_checkpoint into the objects; its path, or None when there was none."""
        found = self.latest_checkpoint
        if found is not None:
            self._checkpoint.restore(found)
        return found
