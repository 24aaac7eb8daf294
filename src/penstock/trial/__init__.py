"""Trials on the local machine: the effect of another tier, more threads or another reader."""

__all__: list[str] = []
