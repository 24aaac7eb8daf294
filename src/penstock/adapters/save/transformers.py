"""Hugging Face's Trainer with its output_dir on a fast tier: drained, and resumed from what is
whole.

trainer = Trainer(args=TrainingArguments(output_dir=fast), callbacks=[DrainCallback(slow)], ...)
trainer.train(resume_from_checkpoint=last_valid_checkpoint(fast, slow))
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from penstock.save.adopting import adopt_folder
from penstock.save.formats import Checkpoint
from penstock.save.retention import Keep
from penstock.save.tiered import Tiers, claim_for_process, drain_beside

__all__ = ["DrainCallback", "last_valid_checkpoint"]

TRAINER_STATE = "trainer_state.json"
AnyPath = str | os.PathLike[str]


class DrainCallback(TrainerCallback):  # type: ignore[misc]  # not type-checked here
    """After each save: syncs the folder, gives it a manifest, and has it drained to `slow`.

    keep, drain: as of Checkpointer.  The Trainer's save_total_limit removes on the fast tier by its
    own count and does not ask what is drained: leave it unset, and let keep= do it.
    """

    def __init__(
        self, slow: AnyPath, *, keep: Keep | None = None, drain: str | None = None
    ) -> None:
        self._slow, self._keep, self._drain = slow, keep, drain

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            Path(args.output_dir).mkdir(parents=True, exist_ok=True)
            claim_for_process(args.output_dir)
            drain_beside(args.output_dir, self._slow, self._keep, self._drain)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            adopt_folder(folder, state.global_step, "hf", args.world_size)
            drain_beside(args.output_dir, self._slow, self._keep, self._drain)


def _is_of_trainer(one: Checkpoint) -> bool:
    """Not a model that save_pretrained() has left there."""
    return one.kind == "hf" and any(one.inner(file) == TRAINER_STATE for file in one.files)


def last_valid_checkpoint(
    fast: AnyPath, slow: AnyPath | None = None, level: str = "full"
) -> str | None:
    """The newest checkpoint that is whole, on any tier; None: there is none to begin from.

    As transformers.trainer_utils.get_last_checkpoint, which takes the highest number."""
    Path(fast).mkdir(parents=True, exist_ok=True)
    chosen = Tiers.of(fast, slow).choose(level, _is_of_trainer)
    return None if chosen.path is None else str(chosen.path)
