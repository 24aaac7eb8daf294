"""The demonstration: a training waits for data; then the reason, the remedy and the proof."""

__all__: list[str] = []
