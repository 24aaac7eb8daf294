"""Save checkpoints to a fast tier, drain to a slow tier, verify, restore and prune.

    from penstock.save import Checkpointer, Keep

`unit` decides which files are one checkpoint, `find` finds the checkpoints of a tier, `check` and
`verify` judge them; `copy` and `drain` copy them to the slow tier and back, `burst` does so for a
program that writes through a burst buffer, and `training` is a training's own Checkpointer.
`penstock save --help` lists the commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.save.drain.retention import Keep
    from penstock.save.training.checkpointer import Checkpointer

__all__ = ["Checkpointer", "Keep"]


if not TYPE_CHECKING:  # a type checker that sees __getattr__ takes any name for a name of save

    def __getattr__(name: str) -> object:
        """Import a public name at first use: the other modules need neither class."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from penstock.save.training import checkpointer

        return getattr(checkpointer, name)
