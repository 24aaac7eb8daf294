"""Checkpoints written by Orbax for JAX. Imports nothing of Orbax.

The blocking part of an asynchronous save is the checkpoint; later writes by Orbax's threads are
ordinary file calls, and their failure shows where the program waits for the save.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from penstock.adapters.marks import wrap, wrap_save, wrap_wait_for_save

__all__ = ["PATCHES"]


def _patch(owner: str) -> Callable[[ModuleType], None]:
    def patch(module: ModuleType) -> None:
        wrap("orbax", module, f"{owner}.save", wrap_save("checkpoint"))
        wrap("orbax", module, f"{owner}.restore", wrap_save("restore"))
        for name in ("wait_until_finished", "check_for_errors"):
            if hasattr(getattr(module, owner, None), name):
                wrap("orbax", module, f"{owner}.{name}", wrap_wait_for_save)

    return patch


def _patch_saving(module: ModuleType) -> None:
    for function in ("save", "save_checkpointables", "save_async", "save_checkpointables_async"):
        wrap("orbax", module, function, wrap_save("checkpoint"))


def _patch_loading(module: ModuleType) -> None:
    for function in ("load", "load_checkpointables"):
        wrap("orbax", module, function, wrap_save("restore"))


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "orbax.checkpoint.checkpoint_manager": _patch("CheckpointManager"),
    "orbax.checkpoint._src.checkpointers.checkpointer": _patch("Checkpointer"),
    "orbax.checkpoint._src.checkpointers.async_checkpointer": _patch("AsyncCheckpointer"),
    "orbax.checkpoint._src.checkpointers.standard_checkpointer": _patch("StandardCheckpointer"),
    "orbax.checkpoint.experimental.v1._src.saving.saving": _patch_saving,
    "orbax.checkpoint.experimental.v1._src.loading.loading": _patch_loading,
}
