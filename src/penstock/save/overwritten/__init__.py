"""Saves over the names of an earlier save: the earlier files, and the mark of a mixture."""

from __future__ import annotations

__all__: list[str] = []
