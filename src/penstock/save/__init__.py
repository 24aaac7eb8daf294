"""Checkpoints on a fast tier and on a slow one: when they count, whether they are whole, what goes.

    from penstock.save import Checkpointer, Keep

Each part says what it knows.  `penstock save --help` is what there is from a shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.save.checkpointer import Checkpointer
    from penstock.save.retention import Keep

__all__ = ["Checkpointer", "Keep"]


def __getattr__(name: str) -> Any:
    """Imported when asked for: the other parts need neither."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.save import checkpointer

    return getattr(checkpointer, name)
