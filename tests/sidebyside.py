"""Which worker of pytest-xdist runs which test: side by side, then those that must be alone.

A test marked `alone` measures time, counts what the whole machine does or takes something of which
there is one.  It runs when all others are done, in the one worker that is left.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler import WorkStealingScheduling
from xdist.workermanage import WorkerController

__all__ = ["SideBySide", "dealt"]

# A worker runs a test only when it has the next one, for whose sake fixtures are kept, or is told
# that none comes.
HELD = 1


def dealt(items: Sequence[pytest.Item], n_workers: int) -> list[pytest.Item]:
    """Return the tests in the order in which the workers get them, in pieces of equal length.

    Each piece begins with its part of the slow tests, as the last test to begin decides when all
    are done; those with a limit of their own, which they need, are the first.  Neighbours stay
    together, for the sake of what they share.
    """

    def marked(mark: str) -> set[pytest.Item]:
        return {item for item in items if item.get_closest_marker(mark)}

    alone, slow, limited = marked("alone"), marked("slow"), marked("timeout")
    long = [item for item in items if item in slow - alone]
    long.sort(key=lambda item: item not in limited)
    short = [item for item in items if item not in slow | alone]
    order: list[pytest.Item] = []
    for n_left in range(n_workers, 0, -1):
        n_long = len(long) // n_left
        n_short = (len(long) + len(short)) // n_left - n_long
        order += long[:n_long] + short[:n_short]
        del long[:n_long], short[:n_short]
    return [*order, *(item for item in items if item in alone)]


class SideBySide(WorkStealingScheduling):
    """Work stealing; the last worker that is left gets the tests marked alone."""

    def __init__(self, mark: str, config: pytest.Config, log: Any) -> None:
        """mark: what the ids of tests that must be alone contain."""
        super().__init__(config, log)
        self._mark = mark
        self._alone: list[int] = []

    @property
    def tests_finished(self) -> bool:
        return not self._alone and super().tests_finished

    @property
    def has_pending(self) -> bool:
        return bool(self._alone) or super().has_pending

    def check_schedule(self) -> None:
        """Gives idle workers something to do, or lets them go."""
        if self.collection is not None:
            alone = [i for i in self.pending if self._mark in self.collection[i]]
            self._alone = sorted({*self._alone, *alone})
            self.pending[:] = [i for i in self.pending if i not in self._alone]
        if not self._alone:
            super().check_schedule()
            return
        self._hand_out()
        kept = next((node for node in self.node2pending if not node.shutting_down), None)
        if kept is None or not self._is_out_of_work(kept):
            super().check_schedule()
        elif len(self.node2pending) > 1:
            self._let_others_go(kept)
        else:
            self.pending[:], self._alone = self._alone, []
            super().check_schedule()

    def _hand_out(self) -> None:
        """As the base does it, without letting go whoever gets too little."""
        idle = [
            node
            for node, held in self.node2pending.items()
            if len(held) <= HELD and not node.shutting_down
        ]
        for n_left, node in zip(range(len(idle), 0, -1), idle, strict=True):
            self._send_tests(node, len(self.pending) // n_left)

    def _is_out_of_work(self, node: WorkerController) -> bool:
        """Whether it waits, and nothing but tests that must be alone could be given to it."""
        longest = max(map(len, self.node2pending.values()))
        is_stealable = longest > HELD + 1
        is_stealing = self.steal_requested_from_node is not None
        is_idle = len(self.node2pending[node]) <= HELD
        return is_idle and not (self.pending or is_stealable or is_stealing)

    def _let_others_go(self, kept: WorkerController) -> None:
        held = self.node2pending.pop(kept)
        try:
            super().check_schedule()
        finally:
            self.node2pending = {kept: held, **self.node2pending}
