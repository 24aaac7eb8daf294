"""Choose the checkpoint to restore, and load the same checkpoint in all ranks.

Knows tiers and ranks; `loading` knows the files.
"""

from __future__ import annotations

import logging
from typing import Any

from penstock.errors import PenstockError, SaveError
from penstock.save.drain.tiered import Chosen, Tiers, from_text, to_text
from penstock.save.training import loading
from penstock.save.training.ranks import World

__all__ = ["Restorer"]

log = logging.getLogger("penstock.save")


class Restorer:
    """The restoring of a Checkpointer.

    level: how thoroughly a checkpoint is checked.  weights_only: as for torch.load.  chosen: the
    result of the last choice, with the rejected checkpoints.
    """

    def __init__(self, tiers: Tiers, world: World, level: str, weights_only: bool) -> None:
        self._tiers, self._world = tiers, world
        self._level, self._weights_only = level, weights_only
        self.chosen: Chosen | None = None

    def loaded(self, default: int | None) -> tuple[Chosen, Any]:
        """Return the newest loadable checkpoint, and the content; pass over damaged checkpoints.

        Raises SaveError.
        """
        while True:
            chosen = self.chosen = self._choose()
            for place, reason in chosen.rejected:
                log.warning("not restored: %s: %s", place, reason)
            if chosen.path is None:
                if chosen.rejected or default is None:
                    raise SaveError(_nothing(self._tiers, chosen))
                return chosen, None
            content, why = None, ""
            try:
                content = loading.load(
                    chosen.path, self._world.rank, self._world.size, self._weights_only
                )
            except PenstockError as error:
                why = str(error)
            why = next((said for said in self._world.gather(why) if said), "")
            if not why:
                return chosen, content
            damage = self._tiers.damage(chosen, why) if self._world.rank == 0 else ""
            if not self._world.agreed(damage):
                raise SaveError(why)

    def _choose(self) -> Chosen:
        """Return the choice of rank 0, in all ranks.  Raises SaveError."""
        said = ""
        if self._world.rank == 0:
            try:
                said = to_text(self._tiers.choose(self._level, loading.is_loadable))
            except PenstockError as error:
                said = f"!{error}"
        said = self._world.agreed(said)
        if said.startswith("!"):
            raise SaveError(said[1:])
        return from_text(said)


def _nothing(tiers: Tiers, chosen: Chosen) -> str:
    if not chosen.rejected:
        return f"{tiers.named()}: no checkpoint there; restore(..., default=0) begins anew"
    reasons = "; ".join(f"{place}: {reason}" for place, reason in chosen.rejected)
    return (
        f"{tiers.named()}: no checkpoint is whole: {reasons}; `penstock save verify` says more; "
        "move the folder away to begin anew"
    )
