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
from penstock.save.checkpoint import Checkpoint, step_of
from penstock.save.drain.adopting import (
    adopt_files,
    draft_of,
    forget_note,
    forget_orphans,
    replace_file,
)
from penstock.save.drain.removals import Removals
from penstock.save.drain.retention import Keep, full_said
from penstock.save.drain.tiered import Tiers, claim_for_process, drain_beside

__all__ = ["TieredCheckpointIO"]

AnyPath = str | os.PathLike[str]


class TieredCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]  # not type-checked here
    """A checkpoint plugin.  slow: the folder of ModelCheckpoint's dirpath, or a parent.  keep,
    drain: see Checkpointer.  Raises TierError, SaveError."""

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
        self._latest: tuple[Path, Path, object] | None = None  # name, chosen, facts of the files

    def _below(self, path: AnyPath) -> Path:
        """Return the name of a checkpoint on both tiers."""
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
        claim_for_process(self._fast)  # here: only the writing rank calls this
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
        """Load the checkpoint chosen by latest(), from its tier; else the last whole one of this
        name, on either tier.  Raises SaveError: no whole checkpoint."""
        content: dict[str, Any] = super().load_checkpoint(
            str(self._chosen(self._below(path)) or path), *args, **kwargs
        )
        return content

    def _chosen(self, below: Path) -> Path | None:
        """Return the path of a whole checkpoint of this name; None: neither tier has the name."""
        if self._latest is not None:
            name, chosen, facts = self._latest
            # Saved again since then, perhaps by another rank: a different checkpoint.
            if name == below and self._facts(below, chosen) == facts:
                return chosen
        choice = self._tiers.written_last(os.fspath(below))
        if choice.path is None and choice.rejected:
            reasons = "; ".join(f"{place}: {why}" for place, why in choice.rejected)
            raise SaveError(f"{below}: not whole on either tier: {reasons}; load another one")
        if choice.path is None and (self._fast / below).exists():
            return self._fast / below
        return choice.path

    def _facts(self, below: Path, chosen: Path) -> object:
        facts = []
        for path in (self._fast / below, chosen):
            there = path.stat() if path.exists() else None
            facts.append(there and (there.st_ino, there.st_size, there.st_mtime_ns))
        return facts

    def remove_checkpoint(self, path: AnyPath) -> None:
        """Remove a checkpoint from both tiers, by the drain: from the fast tier once either has a
        newer one, from the slow tier once a newer one is verified there.  Raises TierError."""
        below = self._below(path)
        fast, slow = self._tiers.fast, self._tiers.slow
        assert fast is not None
        assert slow is not None
        if Removals(fast, slow).note(os.fspath(below)):
            drain_beside(self._fast, self._slow, self._keep, self._drain)
            return
        for folder in (self._fast, self._slow):  # not a known checkpoint: nothing is copied
            target = folder / below
            forget_note(target)
            if target.is_file():
                target.unlink()

    def latest(self, level: str = "full") -> str | None:
        """Return the newest whole checkpoint by its name below slow, for
        trainer.fit(ckpt_path=...).

        A checkpoint of another fast tier is chosen only without a whole one of ours.
        """

        def wanted(checkpoint: Checkpoint) -> bool:
            return checkpoint.name.endswith(".ckpt")

        chosen = self._tiers.choose(level, self._tiers.own_first(wanted))
        if chosen.path is None:  # ours are all damaged: another's is more than a new beginning
            chosen = self._tiers.choose(level, wanted)
        if chosen.path is None:
            return None
        is_near = chosen.path.is_relative_to(self._fast)
        below = chosen.path.relative_to(self._fast if is_near else self._slow)
        self._latest = (below, chosen.path, self._facts(below, chosen.path))
        return str(self._slow / below)
