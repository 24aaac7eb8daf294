"""Safety of Penstock beside strangers: files, sums, bounds, text.  Imports no other wing."""

__all__: list[str] = []
