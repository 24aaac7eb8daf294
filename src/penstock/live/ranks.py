"""What a running job loses, where its main processes wait for each other in their steps.

Knows steps and what halted them, by process; knows no log and no event.  Whether processes wait for
each other, and whose halts count for all of them then, is asked of the report's own queries
(generations, step_bins, coupling, shares), over the steps that are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.live.kept import FOREVER, WAIT, WALL, Array, Bins, Halt, Trainer
from penstock.questions import query

__all__ = ["Main", "Ranks", "Shared"]

# Steps of each main process that are kept one by one, to know by them whether processes wait for
# each other: that is known after a hundred where they meet in each step, after some hundreds where
# they meet in each sixteenth.
STEPS_KEPT = 2048
LEAST_KEPT = 128  # a hundred steps of two processes are enough
ALL_KEPT = 1 << 17  # of all main processes together: some ten megabytes
HALTS_KEPT = 1 << 15  # of one, however many there are in a step: as much

# Coupling is asked again when there are so many more steps: asking takes longer the more there are.
MORE_STEPS = 1.125

# Of a row of sums: not the wall, but the stall at most, where it is not known who waits for whom.
MOST = WALL


@dataclass(frozen=True, slots=True)
class Main:
    """A main process at one look; open: the halt that is under way; is_done: its log is whole."""

    rank: int | None
    trainer: Trainer
    open: Sequence[Halt] = ()
    is_done: bool = False


@dataclass(slots=True)
class Shared:
    """Halts of all main processes, each counted as the job counts it: rows of Trainer.sums, without
    wall and own calls; in the row MOST as the job counts it at most."""

    sums: Array = field(default_factory=lambda: np.zeros(6))
    bins: Bins = field(default_factory=lambda: Bins(6))

    def add(self, halt: Halt, share: float, most: float) -> None:
        rows = {halt.row: halt.ns * share, halt.row + 1: halt.in_calls * share}
        rows[MOST] = halt.ns * most
        for row, amount in rows.items():
            if amount:
                self.sums[row] += amount
                self.bins.spread(row, halt.from_ns, halt.to_ns, amount)

    def copy(self) -> "Shared":
        bins = Bins(6)
        bins.sums, bins.second = self.bins.sums.copy(), self.bins.second
        return Shared(self.sums.copy(), bins)


class Ranks:
    """What is known of how main processes step together.  Each look() counts all halts so far.

    how: one, together, apart or not known, as queries/coupling.sql tells it, of the steps that are
    kept; size: in how many steps they meet.
    """

    def __init__(self) -> None:
        self.how = "one"
        self.size = 1
        self._asked = 0  # steps that the answer is about
        self._is_settled = False  # older steps are forgotten: the answer stays
        self._counted = Shared()  # halts of steps that all have taken
        self._counted_by: object = None
        self._of_generations: object = None
        self._known_generations: dict[str, Array] = {}
        self._engine: Any = None

    def look(self, mains: Sequence[Main]) -> Shared:
        """The halts of all main processes, those under way included."""
        for main in mains:
            if main.is_done:  # then a halt after the last step is one of that: step_stretches.sql
                for halt in main.trainer.halts:
                    halt.step = min(halt.step, max(1, main.trainer.closed))
        shifts = _shifts(mains)
        self._ask(mains, shifts)
        self._forget_counted(mains, shifts)
        kept = max(LEAST_KEPT, min(STEPS_KEPT, ALL_KEPT // max(1, len(mains))))
        moved = shifts or [0] * len(mains)
        closed = [main.trainer.closed + by for main, by in zip(mains, moved, strict=True)]
        latest = max(closed, default=0)
        # All bins up to this step are whole.  One is the steps from n * size + 2 on: shares.sql.
        # To the latest step of each process may belong what follows, if it is its last.
        running = [
            step - 1
            for main, step in zip(mains, closed, strict=True)
            if main.trainer.closed and not main.is_done
        ]
        whole = max(min(running, default=latest), latest - kept)
        if running:
            whole = (whole - 1) // self.size * self.size + 1
        # Halts of a process without steps count as they are.
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

    def _forget_counted(self, mains: Sequence[Main], shifts: Sequence[int] | None) -> None:
        """Where it is known anew who waits for whom, what was counted is to be counted again."""
        whose = [(id(m.trainer), m.trainer.origin, m.trainer.closed > 0) for m in mains]
        key = (self.how, self.size, shifts, whose)
        if key == self._counted_by or self._is_settled:
            return
        self._counted_by, self._counted = key, Shared()
        for main in mains:
            main.trainer.n_counted = 0

    def _ask(self, mains: Sequence[Main], shifts: Sequence[int] | None) -> None:
        """Whether they wait for each other, if so many more steps tell."""
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
            answer = self._answer(tables, "step_bins", "coupling")
            size = answer["size"][0]
            self.how, self.size = answer["how"][0], 1 if np.ma.is_masked(size) else int(size)
            if self.how == "one":  # there is no step between two of each
                self.how = "not known"

    def _count(
        self, mains: Sequence[Main], shifts: Sequence[int] | None, whole: Sequence[int]
    ) -> Shared:
        """Counts what is new; for good what each main process had up to its step `whole`."""
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
                self._counted.add(halt, counted, at_most)
                mains[place].trainer.n_counted += 1
            else:
                later.append((halt, counted, at_most))
        shared = self._counted.copy()
        for halt, counted, at_most in later:
            shared.add(halt, counted, at_most)
        return shared

    def _shares(
        self,
        mains: Sequence[Main],
        shifts: Sequence[int] | None,
        halts: Sequence[tuple[int, Halt]],
    ) -> tuple[list[float], list[float]]:
        """As what multiple each halt counts for the job: as far as is known, and at most.  In a
        step that was not read of all processes, all may have waited."""
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
                    "generations": self._generations(mains),
                    "step_stretches": {"process": np.array(stepping)},
                    "coupling": {"how": np.array([self.how]), "size": np.array([self.size])},
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
        """The table generations, made once for the main processes that there are."""
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
        """The columns of the last of these queries, over the tables and those before it."""
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
    """What makes of the number of a step in its process its number for all: 0, where all logs are
    read from the begin; else by the number that the step has of its own.  None: it has none."""
    if not any(main.trainer.is_cut for main in mains):
        return [0] * len(mains)
    if not all(main.trainer.is_counting and main.trainer.closed for main in mains):
        return None
    first = max(main.trainer.first_index for main in mains)
    return [main.trainer.first_index - first for main in mains]


def _stretches(mains: Sequence[Main], shifts: Sequence[int]) -> dict[str, Array]:
    """The table step_stretches of the steps that are kept: queries/step_stretches.sql."""
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


# The halts that are known here, in the words of queries/step_stalls.sql.
_STEP_STALLS = """
    SELECT h.process, h.wait_id, NULL AS save_id, NULL AS calls_id, g.generation, h.step, h.ns
    FROM halts AS h
    JOIN generations AS g ON g.process = h.process"""
