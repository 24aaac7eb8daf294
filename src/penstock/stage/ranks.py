"""Ranks of an MPI job copying to one tier together.  Knows MPI and folders; copies nothing.

Ranks of several nodes may have separate tiers of one name, or share a tier.  Each rank leaves a
file on the rank's tier and looks for the files of other ranks, so no rank has to be asked.
"""

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.errors import MissingDependency, TierError
from penstock.stage.copy import Copied, summed
from penstock.stage.manifest import TierPlace

__all__ = ["CommRanks", "ranks_of_mpi"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommRanks:
    """A communicator, with the rank of the current process."""

    world: Any
    rank: int
    size: int

    def first_only(self, make: Callable[[], T]) -> T:
        """Call make in rank 0; return the value, or raise the error, in every rank."""
        made: Any = None
        if self.rank == 0:
            try:
                made = make()
            except Exception as error:
                made = error
        made = self.world.bcast(made, root=0)
        if isinstance(made, Exception):
            raise made
        result: T = made
        return result

    def sharing(self, place: TierPlace) -> "tuple[int, int]":
        """Return the number of the current rank, and the count, among ranks with a common tier.

        Raises TierError in every rank: some rank has no tier of the name.
        """
        token = self.first_only(lambda: uuid.uuid4().hex)
        why = ""
        try:
            place.make()
            (place.own / f"rank-{token}-{self.rank}").touch()
        except (TierError, OSError) as error:
            why = str(error)
        self._agree(why)
        seen = sorted(
            int(path.name.rpartition("-")[2]) for path in place.own.glob(f"rank-{token}-*")
        )
        self.world.barrier()
        with suppress(OSError):
            (place.own / f"rank-{token}-{self.rank}").unlink()
        return seen.index(self.rank), len(seen)

    def _agree(self, why: str) -> None:
        failed = [reason for reason in self.world.allgather(why) if reason]
        if failed:
            raise TierError(failed[0])

    def together(self, do: Callable[[], Copied]) -> Copied:
        """Do a rank's part and wait for the other ranks; return the sum of all results.

        Raises the first error, in every rank, once all ranks have ended.
        """
        done: Copied | None = None
        why = ""
        try:
            done = do()
        except TierError as error:
            why = str(error)
        everyone = self.world.allgather(done)
        self._agree(why)
        return summed([copied for copied in everyone if copied is not None])


def ranks_of_mpi() -> CommRanks:
    """Return the MPI job of the current process.  Raises MissingDependency."""
    try:
        from mpi4py import MPI
    except (ModuleNotFoundError, ImportError, RuntimeError) as error:
        raise MissingDependency(
            f"--mpi needs mpi4py and an MPI library ({error}): pip install 'penstock[mpi]'"
        ) from error
    world = MPI.COMM_WORLD
    return CommRanks(world, world.Get_rank(), world.Get_size())
