"""Checks of a checkpoint by the format of its files."""

from __future__ import annotations

__all__: list[str] = []
