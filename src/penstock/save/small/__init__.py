"""Many small files, read and copied at once."""

from __future__ import annotations

__all__: list[str] = []
