"""A run folder as tables: the logs of all processes, in columns, on a common clock."""

__all__: list[str] = []
