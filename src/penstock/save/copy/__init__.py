"""A checkpoint, copied to another tier."""

from __future__ import annotations

__all__: list[str] = []
