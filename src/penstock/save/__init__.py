"""Save checkpoints to a fast tier, drain to a slow tier, verify, restore and prune.

    from penstock.save import Checkpointer, Keep

Each module opens with its knowledge and limits.  `penstock save --help` lists the commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.save.checkpointer import Checkpointer
    from penstock.save.retention import Keep

__all__ = ["Checkpointer", "Keep"]


if not TYPE_CHECKING:  # a type checker that sees __getattr__ takes any name for a name of save

    def __getattr__(name: str) -> object:
        """Import a public name at first use: the other modules need neither class."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from penstock.save import checkpointer

        return getattr(checkpointer, name)
