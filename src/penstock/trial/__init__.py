"""Trials on this machine: what another tier, more threads or another reader would give."""

__all__: list[str] = []
