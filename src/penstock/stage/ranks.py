"""Ranks of an MPI job that copy to one tier together.  Knows MPI and folders; copies nothing.

Ranks of several nodes may have separate tiers of one name, or share one.  Each rank leaves a file
on its tier and looks for the files of the others, so nobody has to be asked.
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
    """A communicator, with this process's rank."""

    world: Any
    rank: int
    size: int

    def first_only(self, make: Callable[[], T]) -> T:
        """Call make in rank 0, and return its value, or raise its error, in every rank."""
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
        """Return this rank's number, and the count, among the ranks that reach the same tier.

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
        failed = [told for told in self.world.allgather(why) if told]
        if failed:
            raise TierError(failed[0])

    def together(self, do: Callable[[], Copied]) -> Copied:
        """Does a rank's part and waits for the others.  What came of all; raises the first error,
        in every rank, once all have ended."""
        done: Copied | None = None
        why = ""
        try:
            done = do()
        except TierError as error:
            why = str(error)
        everyone = self.world.allgather(done)
        self._agree(why)
        return summed([one for one in everyone if one is not None])


def ranks_of_mpi() -> CommRanks:
    """Return the MPI job of this process.  Raises MissingDependency."""
    try:
        from mpi4py import MPI
    except (ModuleNotFoundError, ImportError, RuntimeError) as error:
        raise MissingDependency(
            f"--mpi needs mpi4py and an MPI library ({error}): pip install 'penstock[mpi]'"
        ) from error
    world = MPI.COMM_WORLD
    return CommRanks(world, world.Get_rank(), world.Get_size())
