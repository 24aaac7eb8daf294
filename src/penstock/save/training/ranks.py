"""Find the rank of the process and the number of ranks, and exchange short texts between ranks.

The exchange uses torch.distributed or MPI, whichever the program has started.  Ranks exchange texts
when a Checkpointer is made and when a Checkpointer restores: at points that all ranks reach, in the
calling thread.  A save needs no collective: the parts meet in a folder (gather.py), and a dead rank
hangs no other rank.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["World", "found_world"]


@dataclass(frozen=True, slots=True)
class World:
    """The place of this process among the ranks of the job.

    gather: returns the texts of all ranks, in the order of the ranks; all ranks must call gather.
    """

    rank: int
    size: int
    gather: Callable[[str], list[str]]

    def agreed(self, text: str) -> str:
        """Return rank 0's text, in every rank."""
        return self.gather(text)[0]

    def token(self) -> str:
        """Return a random word, equal in all ranks and different at each start of the job."""
        return self.agreed(uuid.uuid4().hex[:12])


def found_world() -> World:
    """Return the world of torch.distributed if initialized, else of MPI if mpi4py is imported and
    has several ranks, else a world of a single rank."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return _of_torch(distributed)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.COMM_WORLD.Get_size() > 1:
        # A separate communicator keeps Penstock's messages apart from the program's messages.
        world = mpi.COMM_WORLD.Dup()
        return World(world.Get_rank(), world.Get_size(), world.allgather)
    return World(0, 1, lambda text: [text])


def _of_torch(distributed: Any) -> World:
    size = distributed.get_world_size()

    def gather(text: str) -> list[str]:
        texts: list[Any] = [None] * size
        distributed.all_gather_object(texts, text)
        return [str(gathered) for gathered in texts]

    return World(distributed.get_rank(), size, gather)
