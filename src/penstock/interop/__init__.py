"""Other tools' formats, in and out, a module per format.  Reads runs by SQL."""

__all__: list[str] = []
