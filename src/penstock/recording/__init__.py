"""In the job and beside it: the recorder, and the ways by which it gets into a program."""

__all__: list[str] = []
