"""The drain from the fast tier to the slow tier, what both keep, and the way back."""

from __future__ import annotations

__all__: list[str] = []
