"""A report made visible, one medium a module.  A view sees a Report: no run, no file, no event."""

__all__: list[str] = []
