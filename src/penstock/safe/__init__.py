"""What keeps Penstock safe beside strangers: files, sums, bounds, text.  Imports no other wing."""

__all__: list[str] = []
