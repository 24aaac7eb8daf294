"""Places for bytes: tiers, the stores of tiers, and the part of a file in memory."""

__all__: list[str] = []
