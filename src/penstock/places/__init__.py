"""Places for bytes: tiers, the stores behind them, and the part of a file in memory."""

__all__: list[str] = []
