"""A run folder as tables: the logs of all processes, in columns, on one clock."""

__all__: list[str] = []
