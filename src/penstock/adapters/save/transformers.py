"""Hugging Face's Trainer with its output_dir on a fast tier: drained, and resumed from what is
whole.

trainer = Trainer(args=TrainingArguments(output_dir=fast), callbacks=[DrainCallback(slow)], ...)
with full_said(fast):
    trainer.train(resume_from_checkpoint=last_valid_checkpoint(fast, slow))
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from penstock.errors import SaveError, TierFull
from penstock.save.checkpoint import Checkpoint
from penstock.save.drain.adopting import adopt_folder
from penstock.save.drain.retention import Keep, full_said
from penstock.save.drain.tiered import Tiers, claim_for_process, drain_beside
from penstock.save.find.formats import find

__all__ = ["DrainCallback", "full_said", "last_valid_checkpoint"]

ON_FULL = ("wait", "skip")
ALL = Keep(fast=1 << 30)
TRAINER_STATE = "trainer_state.json"
BLOCK_BYTES = 4096
DRAIN_BLOCKS = 8  # the drain's status, metrics, log and lock, and a draft of two of them
log = logging.getLogger("penstock.save")
AnyPath = str | os.PathLike[str]


class DrainCallback(TrainerCallback):  # type: ignore[misc]  # not type-checked here
    """After each save: syncs the folder, writes a manifest, and starts the drain to `slow`. All
    ranks need the callback: they wait for each other before the manifest is written.

    keep, drain: see Checkpointer.  The Trainer's save_total_limit removes on the fast tier by its
    own count, drained or not: leave it unset, and use keep=. on_full: without room for another
    checkpoint of the last one's size, "wait" until `keep` frees drained checkpoints, or "skip" this
    save (one process only). TierFull ends the training before any write if waiting cannot help.  A
    disk that fills during a save is an error of the Trainer's; `with full_said(fast):` explains it.
    """

    def __init__(
        self,
        slow: AnyPath,
        *,
        keep: Keep | None = None,
        drain: str | None = None,
        on_full: str = "wait",
    ) -> None:
        if on_full not in ON_FULL:
            raise SaveError(f"on_full={on_full!r} is not among {', '.join(ON_FULL)}")
        self._slow, self._keep, self._drain, self._on_full = slow, keep, drain, on_full
        self._next_bytes = 0
        self._tiers: Tiers | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.world_size > 1 and self._on_full != "wait":
            raise SaveError(f"on_full={self._on_full!r} is for one process: many would not agree")
        if state.is_world_process_zero:
            Path(args.output_dir).mkdir(parents=True, exist_ok=True)
            claim_for_process(args.output_dir)
            drain_beside(args.output_dir, self._slow, self._keep, self._drain)
            self._tiers = tiers = Tiers.of(args.output_dir, self._slow)
            there = find(tiers.fast) if tiers.fast is not None else []
            last = next((checkpoint for checkpoint in there if _is_of_trainer(checkpoint)), None)
            self._next_bytes = _next_bytes(file.size_bytes for file in last.files) if last else 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._make_room(args, state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._make_room(args, state, control)

    def _make_room(self, args: Any, state: Any, control: Any) -> None:
        if self._tiers is None or not control.should_save or not self._next_bytes:
            return
        name = f"checkpoint-{state.global_step}"
        try:
            root = self._tiers.room(self._next_bytes, self._keep or ALL, self._on_full)
        except TierFull as error:
            raise TierFull(
                f"{args.output_dir}: no room for {name}: by the last one it takes "
                f"{self._next_bytes:,} bytes, {error.wanted_bytes:,} more than are free; use a "
                "larger tier, or keep fewer: DrainCallback(keep=Keep(fast=1))",
                error.path,
                error.wanted_bytes,
            ) from error
        if root is None:
            control.should_save = False
            log.warning("%s is not saved: no room on %s", name, args.output_dir)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _meet(args.world_size)
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            manifest = adopt_folder(folder, state.global_step, "hf", args.world_size)
            self._next_bytes = _next_bytes(file.size_bytes for file in manifest.files)
            drain_beside(args.output_dir, self._slow, self._keep, self._drain)


def _meet(world_size: int) -> None:
    """Wait until each rank has written its part: the Trainer does not wait for the files of random
    states."""
    if world_size > 1:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            distributed.barrier()


def _next_bytes(sizes: Iterable[int]) -> int:
    """Return the room for the next checkpoint: whole blocks, a block more per file, as the record
    of steps grows; the manifest; and the drain's own files."""
    return BLOCK_BYTES * (1 + DRAIN_BLOCKS + sum(-(-size // BLOCK_BYTES) + 1 for size in sizes))


def _is_of_trainer(checkpoint: Checkpoint) -> bool:
    """Return True for a checkpoint of the Trainer, not a model left by save_pretrained()."""
    return checkpoint.kind == "hf" and any(
        checkpoint.inner(file) == TRAINER_STATE for file in checkpoint.files
    )


def last_valid_checkpoint(
    fast: AnyPath, slow: AnyPath | None = None, level: str = "full"
) -> str | None:
    """Return the newest whole checkpoint on any tier; None: no checkpoint to begin from.

    Replaces transformers.trainer_utils.get_last_checkpoint, which takes the highest number.
    """
    tiers = Tiers.of(fast, slow)
    Path(tiers.root).mkdir(parents=True, exist_ok=True)
    chosen = tiers.choose(level, _is_of_trainer)
    return None if chosen.path is None else str(chosen.path)
