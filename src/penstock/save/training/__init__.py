"""A training's own Checkpointer: a snapshot in memory, a writer process, and the restore."""

from __future__ import annotations

__all__: list[str] = []
