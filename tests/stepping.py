"""Ranks that step and wait as they are told: which of them wait for each other is known."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import logwriter
from penstock.explain.measures import Coupling
from penstock.explain.questions import prepare
from synthetic import Synthetic

Array = NDArray[np.float64]
MS = 1_000_000
LEAST_WAIT = 50_000  # shorter ones are not recorded
# What all ranks wait for data, or compute, in a step, in ms.
Of = Callable[[np.random.Generator, int], Array]


@dataclass(frozen=True)
class Ranks:
    """Data waits and ends of steps in ms, by step and rank; the ends of step 0 are the begin.

    comes: when each rank comes to the exchange at the end of the step; NaN: there is none."""

    waits: Array
    ends: Array
    comes: Array | None = None

    @property
    def lost(self) -> float:
        """What all lose where they meet in each step: the longest wait of each, as a share."""
        return float(self.waits[1:].max(axis=1).sum() / self.walls.mean())

    @property
    def mean(self) -> float:
        return float((self.waits[1:].sum(axis=0) / self.walls).mean())

    @property
    def walls(self) -> Array:
        """From the first step's begin, which its batch opens, to the end."""
        return np.asarray(self.ends[-1] - self.ends[0] - self.waits[0])

    def run(
        self,
        size: int | None = None,
        lacks: int | None = None,
        numbers: list[int] | None = None,
        exchanges: bool = False,
    ) -> Synthetic:
        """A recording of them; size: how many ranks the job has; lacks: one that left no log;
        numbers: the ranks' own, if not 0, 1, 2 …; exchanges: their waits for each other are in it,
        too."""
        run = Synthetic()
        for rank in range(self.ends.shape[1]):
            if rank == lacks:
                continue
            process = 1 + rank
            at = (self.ends[:, rank] * MS).astype(int)
            waits = (self.waits[:, rank] * MS).astype(int)
            number = rank if numbers is None else numbers[rank]
            run.process(process, end=int(at[-1]) + MS, rank=number,
                        world_size=size or self.ends.shape[1])  # fmt: skip
            for step, wait in enumerate(waits):
                run.wait(int(at[step]), int(at[step] + wait), step, process=process)
                run.step(int(at[step] + wait), int(at[step + 1]), step, process=process)
            comes = self._comes(rank) if exchanges else ()
            for come, end in zip(comes, at[1:], strict=exchanges):
                if end - come >= LEAST_WAIT:
                    run.blocked("poll", int(come), int(end), by="/usr/lib/libgloo.so.0",
                                descriptor="socket:", process=process)  # fmt: skip
        return run

    def _comes(self, rank: int) -> Array:
        """In ns; after the end where there is no exchange."""
        if self.comes is None:
            return np.full(len(self.waits), np.inf)
        return np.nan_to_num(self.comes[:, rank], nan=np.inf) * MS

    def beside(self, other: "Ranks") -> "Ranks":
        """Two jobs in one recording: the ranks of both, as many steps of each."""
        assert self.comes is not None
        assert other.comes is not None
        return Ranks(
            np.hstack([self.waits, other.waits]),
            np.hstack([self.ends, other.ends]),
            np.hstack([self.comes, other.comes]),
        )

    def logs(
        self,
        folder: Path,
        *,
        launched: bool = True,
        steps: int | None = None,
        waiting: int | None = None,
        busy: int | None = None,
        saves_ms: float = 0,
    ) -> Path:
        """Write the steps as the logs of a run folder.

        steps: number of steps taken by a job that still runs.  waiting: rank that waits for the
        next batch.  busy: rank that makes other calls.  saves_ms: duration of a checkpoint of the
        last rank after the last step.
        """
        folder.mkdir(exist_ok=True)
        for rank in range(self.ends.shape[1]):
            process = logwriter.Process(
                pid=100 + rank,
                header={"host": b"node1"}
                | ({"rank": rank, "world_size": self.ends.shape[1]} if launched else {})
                | ({} if steps is None else {"state": "running"}),
            )
            at = (self.ends[:, rank] * MS).astype(int)
            waits = (self.waits[:, rank] * MS).astype(int)[:steps]
            for step, wait in enumerate(waits):
                process.span("data wait", int(at[step]), int(wait), step, 1, 1000)
                process.step(step, int(at[step] + wait), int(at[step + 1] - at[step] - wait), b=1)
                if rank == busy:
                    process.call("read", int(at[step + 1]) - 1000, 900, "/data/x", moved=1)
            if rank == waiting:
                process.span("data wait", int(at[len(waits)]), 0, len(waits), 1, 1000)
            if saves_ms and rank == self.ends.shape[1] - 1:
                process.span("checkpoint", int(at[-1]), int(saves_ms * MS), 0)
            process.write(folder, rank)
        return folder


def even(least: float, most: float) -> Of:
    return lambda rng, n: rng.uniform(least, most, n)


def one_slow(ms: float, rank: int = 0) -> Of:
    """One rank waits so long, the others hardly."""

    def wait(rng: np.random.Generator, n: int) -> Array:
        of_all = rng.uniform(0.5, 1.5, n)
        of_all[rank] = ms
        return of_all

    return wait


def now_and_then(ms: float) -> Of:
    return lambda rng, n: rng.exponential(ms, n)


def together(
    n: int,
    steps: int,
    wait: Of,
    compute: Of,
    *,
    every: int = 1,
    late_ms: float = 0.3,
    seed: int = 1,
) -> Ranks:
    """Ranks that meet after so many steps, and then go on, each a little later."""
    rng = np.random.default_rng(seed)
    at, ends, waits, comes = np.full(n, 10.0), [np.full(n, 10.0)], [], []
    for step in range(steps):
        waits.append(wait(rng, n))
        at = at + waits[-1] + compute(rng, n)
        comes.append(np.full(n, np.nan))
        if (step + 1) % every == 0:
            comes[-1] = at
            at = at.max() + rng.uniform(0, late_ms, n)
        ends.append(at)
    return Ranks(np.array(waits), np.array(ends), np.array(comes))


def apart(n: int, steps: int, wait: Of, compute: Of, seed: int = 1) -> Ranks:
    return together(n, steps, wait, compute, every=steps + 1, seed=seed)


def in_pace(n: int, steps: int, pace_ms: float, compute: Of, seed: int = 1) -> Ranks:
    """Ranks whose loaders hand over a batch at a rate: they keep pace, and do not meet."""
    rng = np.random.default_rng(seed)
    ends = 10 + pace_ms * np.arange(1, steps + 1)[:, None] + rng.uniform(0, 2, (steps, n))
    ends = np.concatenate([np.full((1, n), 10.0), ends])
    computes = np.array([compute(rng, n) for _ in range(steps)])
    return Ranks(np.diff(ends, axis=0) - computes, ends)


def coupling_of(run: Synthetic) -> Coupling:
    """Return how the ranks of a run wait for each other, by the names of the query's columns."""
    prepare(run.connection, ("coupling",))
    names = [field.name for field in fields(Coupling)]
    asked = f"SELECT {', '.join(names)} FROM coupling"
    (row,) = run.connection.execute(asked).fetchall()
    return Coupling(**dict(zip(names, row, strict=True)))
