"""Which of how many ranks this process is, and the little that ranks say to each other.

By torch.distributed or MPI, whichever the program has started.  Ranks talk when a Checkpointer is
made and when it restores: at points where all of them are, in the thread that called.  A save needs
no collective: its parts meet in a folder (gather.py), so that a dead rank hangs nobody.
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
    """This process among the ranks of the job.

    gather: gives each rank the texts of all, in their order; called by all ranks.
    """

    rank: int
    size: int
    gather: Callable[[str], list[str]]

    def agreed(self, text: str) -> str:
        """Rank 0's text, in every rank."""
        return self.gather(text)[0]

    def token(self) -> str:
        """A word that all ranks of this start of the job share, and no other start has."""
        return self.agreed(uuid.uuid4().hex[:12])


def found_world() -> World:
    """torch.distributed's world where it is initialized, MPI's where mpi4py is imported, else one
    rank."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return _of_torch(distributed)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.COMM_WORLD.Get_size() > 1:
        # Its own communicator: a message of ours never meets one of the program's.
        world = mpi.COMM_WORLD.Dup()
        return World(world.Get_rank(), world.Get_size(), world.allgather)
    return World(0, 1, lambda text: [text])


def _of_torch(distributed: Any) -> World:
    size = distributed.get_world_size()

    def gather(text: str) -> list[str]:
        texts: list[Any] = [None] * size
        distributed.all_gather_object(texts, text)
        return [str(found) for found in texts]

    return World(distributed.get_rank(), size, gather)
