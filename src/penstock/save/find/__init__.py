"""The checkpoints of a tier: found, and compared with the checkpoints before and on other tiers."""

from __future__ import annotations

__all__: list[str] = []
