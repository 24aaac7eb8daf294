"""Where bytes can live: tiers, the stores behind them, and what of a file is in memory."""

__all__: list[str] = []
