"""A report made visible, a module per medium.  A view sees a Report: no run, no file, no event."""

__all__: list[str] = []
