"""Lightning's checkpoints through a fast and a slow tier: a plugin, and nothing else changes.

    trainer = Trainer(
        plugins=[TieredCheckpointIO(fast="/nvme/run1", slow="/lustre/run1", drain="300MB/s")],
        callbacks=[ModelCheckpoint(dirpath="/lustre/run1")],
    )
    trainer.fit(model, ckpt_path=plugin.latest())

A checkpoint is Lightning's own .ckpt file.  It is written below `fast` under the name it has below
`slow`, synced, and drained there.  To save beside the training as well, wrap the plugin in
Lightning's AsyncCheckpointIO.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from penstock.errors import SaveError
from penstock.save.adopting import adopt_files, draft_of, forget_note, forget_orphans, replace_file
from penstock.save.formats import step_of
from penstock.save.removals import Removals
from penstock.save.retention import Keep, full_said
from penstock.save.tiered import Tiers, claim_for_process, drain_beside

__all__ = ["TieredCheckpointIO"]

AnyPath = str | os.PathLike[str]


class TieredCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]  # not type-checked here
    """slow: the folder that ModelCheckpoint's dirpath is, or is in.  keep, drain: as of
    Checkpointer.  Raises TierError, SaveError."""

    def __init__(
        self,
        fast: AnyPath,
        slow: AnyPath,
        *,
        keep: Keep | None = None,
        drain: str | None = None,
    ) -> None:
        super().__init__()
        self._tiers = Tiers.of(fast, slow)
        slow_folder = self._tiers.slow_folder
        if slow_folder is None:
            raise SaveError(f"{slow}: Lightning looks for its checkpoints in a folder, not a URL")
        self._fast, self._slow = Path(self._tiers.root), slow_folder
        self._keep, self._drain = keep, drain

    def _below(self, path: AnyPath) -> Path:
        """The name of a checkpoint, as both tiers know it."""
        try:
            return Path(path).absolute().relative_to(self._slow.absolute())
        except ValueError:
            raise SaveError(
                f"{os.fspath(path)}: not below {self._slow}; give ModelCheckpoint a dirpath there"
            ) from None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: AnyPath, storage_options: Any = None
    ) -> None:
        import torch

        below = self._below(path)
        claim_for_process(self._fast)  # here: only the rank that writes comes here
        target = self._fast / below
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = draft_of(target)
        try:
            with full_said(target):
                torch.save(checkpoint, draft)
            replace_file(draft, target)
        finally:
            draft.unlink(missing_ok=True)
        step = checkpoint.get("global_step", step_of(below.name))
        adopt_files(target.parent, target.name, [target.name], step, "torch")
        forget_orphans(target.parent)
        drain_beside(self._fast, self._slow, self._keep, self._drain)

    def load_checkpoint(self, path: AnyPath, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """From the fast tier where it is there, else from the slow one."""
        near = self._fast / self._below(path)
        found: dict[str, Any] = super().load_checkpoint(
            str(near if near.exists() else path), *args, **kwargs
        )
        return found

    def remove_checkpoint(self, path: AnyPath) -> None:
        """From both tiers, by the drain: from the fast one once a newer one lies on either, from
        the slow one once a newer one is verified there.  Raises TierError."""
        below = self._below(path)
        fast, slow = self._tiers.fast, self._tiers.slow
        assert fast is not None
        assert slow is not None
        if Removals(fast, slow).note(os.fspath(below)):
            drain_beside(self._fast, self._slow, self._keep, self._drain)
            return
        for folder in (self._fast, self._slow):  # no checkpoint, as we know them: nothing is copied
            target = folder / below
            forget_note(target)
            if target.is_file():
                target.unlink()

    def latest(self, level: str = "full") -> str | None:
        """For trainer.fit(ckpt_path=...): the newest that is whole, as it is named below slow."""
        chosen = self._tiers.choose(level, lambda one: one.name.endswith(".ckpt"))
        if chosen.path is None:
            return None
        for folder in (self._fast, self._slow):
            if chosen.path.is_relative_to(folder):
                return str(self._slow / chosen.path.relative_to(folder))
        return str(chosen.path)
