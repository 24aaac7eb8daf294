"""The log, the first waist: reading the bytes of a recorded process."""

__all__: list[str] = []
