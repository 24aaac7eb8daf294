"""In the job and beside it: the recorder, and the ways to bring it into a program."""

__all__: list[str] = []
