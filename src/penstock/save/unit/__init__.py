"""Which files are one checkpoint: by the names, the sizes and the times of files."""

from __future__ import annotations

__all__: list[str] = []
