"""Data sets and jobs to try Penstock on.  Nothing here is imported by the rest."""

__all__: list[str] = []
