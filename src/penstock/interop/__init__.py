"""Other tools' formats, in and out, one format a module.  What it knows of a run comes by SQL."""

__all__: list[str] = []
