"""The log, the first waist: the bytes that a recorded process leaves, read."""

__all__: list[str] = []
