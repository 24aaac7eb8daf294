"""Files whose pages stay in memory.  A kernel that reclaims by itself (DAMON) may take back what
nobody maps, also what was read a moment ago."""

import mmap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

__all__ = ["kept"]


@contextmanager
def kept(*paths: Path, first: int = 0, length: int = 0) -> Iterator[None]:
    """Each file is in memory while this lasts: `length` bytes (0: all) from page `first` on, and no
    page besides is brought there."""
    with ExitStack() as stack:
        for path in paths:
            file = stack.enter_context(path.open("rb"))
            mapped = mmap.mmap(
                file.fileno(), length, prot=mmap.PROT_READ, offset=first * mmap.PAGESIZE
            )
            stack.enter_context(mapped)
            mapped.madvise(mmap.MADV_RANDOM)  # no read-ahead
            for place in range(0, len(mapped), mmap.PAGESIZE):
                assert mapped[place] >= 0
        yield
