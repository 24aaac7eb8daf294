"""The loss of a running job whose main processes wait for each other in steps.

Knows steps and halts by process; knows no log and no event.  The report's own queries (generations,
step_bins, coupling, shares) decide from the kept steps whether processes wait for each other, and
which process's halts count for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.explain.live.kept import FOREVER, WAIT, WALL, Array, Bins, Halt, Trainer
from penstock.explain.questions import query

__all__ = ["CoupledRanks", "Main", "Shared"]

# Kept steps per main process, for the test whether processes wait for each other.  The test needs
# 100 steps where processes meet in each step, and some hundreds where processes meet in each
# sixteenth step.
STEPS_KEPT = 2048
LEAST_KEPT = 128  # the test needs 100 steps of two processes
ALL_KEPT = 1 << 17  # of all main processes together: about 10 MB
HALTS_KEPT = 1 << 15  # per main process, in any number of steps: about 10 MB

# Growth of the number of steps before the coupling query runs again, as it takes longer with more
# steps.
MORE_STEPS = 1.125

# Shared.sums has the upper bound of the stall in the row of the wall time.  The upper bound differs
# from the stall only where the coupling is not known.
MOST = WALL


@dataclass(frozen=True, slots=True)
class Main:
    """A main process at one look.  open: halts in progress.  is_done: the log is complete."""

    rank: int | None
    trainer: Trainer
    open: Sequence[Halt] = ()
    is_done: bool = False


@dataclass(slots=True)
class Shared:
    """Halts of all main processes, weighted by the loss of the job.

    sums: rows of Trainer.sums in ns, without wall and own calls; row MOST is the upper bound.
    lost_ns: the part of each main process, by its place among them.
    """

    sums: Array = field(default_factory=lambda: np.zeros(6))
    bins: Bins = field(default_factory=lambda: Bins(6))
    lost_ns: dict[int, float] = field(default_factory=dict)

    def add(self, place: int, halt: Halt, share: float, most: float) -> None:
        self.lost_ns[place] = self.lost_ns.get(place, 0.0) + halt.ns * share
        rows = {halt.row: halt.ns * share, halt.row + 1: halt.in_calls * share}
        rows[MOST] = halt.ns * most
        for row, amount in rows.items():
            if amount:
                self.sums[row] += amount
                self.bins.spread(row, halt.from_ns, halt.to_ns, amount)

    def copy(self) -> "Shared":
        bins = Bins(6)
        bins.sums, bins.second = self.bins.sums.copy(), self.bins.second
        return Shared(self.sums.copy(), bins, dict(self.lost_ns))


class CoupledRanks:
    """The coupling of main processes.  Each look() counts all halts so far.

    how: one, together, apart or not known: the result of queries/coupling_by_steps.sql for the
    kept steps.
    size: the processes meet every `size` steps or more often.
    """

    def __init__(self) -> None:
        self.how = "one"
        self.size = 1
        self._asked = 0  # number of steps in the latest coupling query
        self._is_settled = False  # older steps were dropped: the coupling stays fixed
        self._counted = Shared()  # halts of steps ended by all main processes
        self._counted_by: object = None
        self._of_generations: object = None
        self._known_generations: dict[str, Array] = {}
        self._engine: Any = None

    def look(self, mains: Sequence[Main]) -> Shared:
        """Return the halts of all main processes, including halts in progress."""
        for main in mains:
            if main.is_done:  # a later halt belongs to the last step: step_stretches.sql
                for halt in main.trainer.halts:
                    halt.step = min(halt.step, max(1, main.trainer.closed))
        shifts = _shifts(mains)
        self._ask(mains, shifts)
        self._forget_counted(mains, shifts)
        kept = max(LEAST_KEPT, min(STEPS_KEPT, ALL_KEPT // max(1, len(mains))))
        moved = shifts or [0] * len(mains)
        closed = [main.trainer.closed + by for main, by in zip(mains, moved, strict=True)]
        latest = max(closed, default=0)
        # All bins up to step `whole` are complete.  Bins start at steps n * size + 2: shares.sql.
        # The latest step of a running process stays open: without a further step, later halts
        # belong to the latest step.
        running = [
            step - 1
            for main, step in zip(mains, closed, strict=True)
            if main.trainer.closed and not main.is_done
        ]
        whole = max(min(running, default=latest), latest - kept)
        if running:
            whole = (whole - 1) // self.size * self.size + 1
        # Halts of a process without steps count with weight 1.
        limits = [
            whole - by if main.trainer.closed else FOREVER
            for main, by in zip(mains, moved, strict=True)
        ]
        shared = self._count(mains, shifts, limits)
        self._is_settled |= latest > 2 * kept
        for main, by, limit in zip(mains, moved, limits, strict=True):
            if latest > 2 * kept and main.trainer.closed:
                main.trainer.forget_steps(min(limit, latest - kept - by))
            self._is_settled |= main.trainer.forget_halts(HALTS_KEPT)
        return shared

    def slowest(self, mains: Sequence[Main], shared: Shared) -> str:
        """Return the rank with most of the loss, in words.

        "" if no rank has half of the loss, or if ranks do not wait for each other.
        """
        place = max(shared.lost_ns, key=lambda member: shared.lost_ns[member], default=None)
        if self.how != "together" or place is None:
            return ""
        rank, lost_ns = mains[place].rank, sum(shared.lost_ns.values())
        if rank is None or not lost_ns or shared.lost_ns[place] < 0.5 * lost_ns:
            return ""
        return f"rank {rank}"

    def _forget_counted(self, mains: Sequence[Main], shifts: Sequence[int] | None) -> None:
        """Reset the counted halts when the coupling, the numbering or the processes changed."""
        whose = [(id(m.trainer), m.trainer.origin, m.trainer.closed > 0) for m in mains]
        key = (self.how, self.size, shifts, whose)
        if key == self._counted_by or self._is_settled:
            return
        self._counted_by, self._counted = key, Shared()
        for main in mains:
            main.trainer.n_counted = 0

    def _ask(self, mains: Sequence[Main], shifts: Sequence[int] | None) -> None:
        """Update the coupling when the number of steps has grown by MORE_STEPS."""
        if len(mains) < 2 or self._is_settled:
            return
        steps = sum(main.trainer.closed for main in mains)
        is_over = all(main.is_done for main in mains)
        if shifts is None:
            self.how, self.size = "not known", 1
        elif steps >= self._asked * MORE_STEPS or (is_over and steps > self._asked):
            self._asked = max(1, steps)
            tables = {
                "generations": self._generations(mains),
                "step_stretches": _stretches(mains, shifts),
            }
            answer = self._answer(tables, "step_bins", "coupling_by_steps")
            size = answer["size"][0]
            self.how, self.size = answer["how"][0], 1 if np.ma.is_masked(size) else int(size)
            if self.how == "one":  # too few steps of two processes to compare
                self.how = "not known"

    def _count(
        self, mains: Sequence[Main], shifts: Sequence[int] | None, whole: Sequence[int]
    ) -> Shared:
        """Count the new halts; halts up to step `whole` of each main process count finally."""
        new = [
            (place, halt, is_open)
            for place, main in enumerate(mains)
            for halts, is_open in (
                (main.trainer.halts[main.trainer.n_counted :], False),
                (main.open, True),
            )
            for halt in halts
        ]
        share, most = self._shares(mains, shifts, [(place, halt) for place, halt, _ in new])
        later = []
        for (place, halt, is_open), counted, at_most in zip(new, share, most, strict=True):
            if halt.step <= whole[place] and not is_open:
                self._counted.add(place, halt, counted, at_most)
                mains[place].trainer.n_counted += 1
            else:
                later.append((place, halt, counted, at_most))
        shared = self._counted.copy()
        for place, halt, counted, at_most in later:
            shared.add(place, halt, counted, at_most)
        return shared

    def _shares(
        self,
        mains: Sequence[Main],
        shifts: Sequence[int] | None,
        halts: Sequence[tuple[int, Halt]],
    ) -> tuple[list[float], list[float]]:
        """Return the weight of each halt in the loss of the job: known value, upper bound.

        In a step that is missing from the log of a process, all processes may have waited.
        """
        share, most = np.ones(len(halts)), np.ones(len(halts))
        if self.how in ("together", "not known") and shifts is None:
            most *= len(mains)
        elif self.how in ("together", "not known") and shifts is not None:
            step = np.array([halt.step + shifts[place] for place, halt in halts], np.int64)
            takes_steps = np.array([mains[place].trainer.closed > 0 for place, _ in halts], bool)
            most[takes_steps & (step <= 0)] = len(mains)
            rows = np.flatnonzero(takes_steps & (step > 0)).tolist()
            if rows:
                stepping = [place for place, main in enumerate(mains) if main.trainer.closed]
                tables = {
                    "teams": self._generations(mains),
                    "step_stretches": {"process": np.array(stepping)},
                    "coupling": {
                        "how": np.array([self.how]),
                        "size": np.array([self.size]),
                        "shift": np.array([0]),
                    },
                    "halts": {
                        "process": np.array([halts[row][0] for row in rows]),
                        "wait_id": np.array(rows),
                        "step": step[rows],
                        "ns": np.array([int(halts[row][1].ns) for row in rows]),
                    },
                }
                answer = self._answer(tables, "step_stalls", "shares")
                places = answer["wait_id"].astype(int)
                share[places] = answer["share"]
                most[places] = answer["share" if self.how == "together" else "most"]
        return share.tolist(), most.tolist()

    def _generations(self, mains: Sequence[Main]) -> dict[str, Array]:
        """Return the table generations; cached until the main processes change."""
        place = np.arange(len(mains))
        ranks = [
            -1 - number if main.rank is None else main.rank for number, main in enumerate(mains)
        ]
        first = [main.trainer.first_ns or 0 for main in mains]
        if self._of_generations != (ranks, first):
            self._of_generations = ranks, first
            self._known_generations = self._answer(
                {
                    "processes": {"process": place, "rank": np.array(ranks)},
                    "mains": {"process": place, "first_ns": np.array(first)},
                },
                "generations",
            )
        return self._known_generations

    def _answer(self, tables: Mapping[str, Mapping[str, Array]], *asked: str) -> dict[str, Array]:
        """Run the queries in order over the tables; return the columns of the last query."""
        import duckdb

        if self._engine is None:
            self._engine = duckdb.connect(":memory:", config={"threads": 1})
        for name, table in tables.items():
            self._engine.register(name, dict(table))
        *before, last = (_STEP_STALLS if name == "step_stalls" else query(name) for name in asked)
        for name, text in zip(asked, before, strict=False):
            self._engine.execute(f"CREATE OR REPLACE TABLE {name} AS {text}")
        columns: dict[str, Array] = self._engine.execute(last).fetchnumpy()
        return columns


def _shifts(mains: Sequence[Main]) -> list[int] | None:
    """Return the offset from step numbers per process to step numbers common to all processes.

    0 where all logs were read from the start; else from the own numbers of the steps.
    None: a process has no steps, or the own numbers of steps are not consecutive.
    """
    if not any(main.trainer.is_cut for main in mains):
        return [0] * len(mains)
    if not all(main.trainer.is_counting and main.trainer.closed for main in mains):
        return None
    first = max(main.trainer.first_index for main in mains)
    return [main.trainer.first_index - first for main in mains]


def _stretches(mains: Sequence[Main], shifts: Sequence[int]) -> dict[str, Array]:
    """Return the table step_stretches (queries/step_stretches.sql) of the kept steps."""
    rows = []
    for place, (main, shift) in enumerate(zip(mains, shifts, strict=True)):
        trainer = main.trainer
        sums = np.zeros((2, len(trainer.ends)), np.int64)
        for halt in trainer.halts:
            at = min(halt.step, trainer.closed) - trainer.forgotten - 1
            if 0 <= at < len(trainer.ends):
                sums[int(halt.row != WAIT), at] += int(halt.ns)
        for at, (from_ns, to_ns) in enumerate(trainer.ends):
            step = trainer.forgotten + at + 1 + shift
            if step > 0:
                rows.append((place, step, from_ns, to_ns, sums[0, at], sums[1, at]))
    columns = ("process", "step", "from_ns", "to_ns", "wait_ns", "save_ns")
    table = np.array(rows, np.int64).reshape(-1, len(columns))
    return dict(zip(columns, table.T.copy(), strict=True))


# The table step_stalls of the halts of a look, with the columns of queries/step_stalls.sql.
_STEP_STALLS = """
    SELECT h.process, h.wait_id, NULL AS save_id, NULL AS calls_id, g.generation, h.step, h.ns
    FROM halts AS h
    JOIN teams AS g ON g.process = h.process"""
