"""The burst buffer: files that a program wrote to a fast tier, brought to their paths."""

from __future__ import annotations

__all__: list[str] = []
