"""Keep the facts of each save of a Checkpointer: times, sizes, and the lost time of the training.

The module knows values and times, and no tier, no writer and no drain.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from penstock.recording import recorder
from penstock.save.training.handle import AtRisk, Save
from penstock.save.training.lost import lost_s

__all__ = ["Ledger", "watch_steps"]

STEPS_KEPT = 10_000
SAVES_KEPT = 1000
SAVES_COSTED = 8  # the last saves: their lost time may still become known


class Ledger:
    """The saves of a Checkpointer.  Several threads may use a Ledger.

    steps: the end times of the last steps of the training.  busy: by number of the save, the time
    from the call to the end of the write; drained: from the call until the save was durable.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._saves: dict[int, Save] = {}  # by number
        self.steps: deque[float] = deque(maxlen=STEPS_KEPT)
        self.busy: dict[int, tuple[float, float]] = {}
        self.drained: dict[int, tuple[float, float]] = {}
        self._costly: dict[int, None] = {}  # numbers of saves without lost time in the run's log
        self._n_notes = 0
        self.begin_unix_s = time.time()

    @property
    def saves(self) -> tuple[Save, ...]:
        """Return the last saves in order, each with the facts known by now."""
        return tuple(save for _, save in self.with_lost(list(self._saves)))

    def longest_local_s(self) -> float:
        """Return the longest time from the start of a save until the save was local."""
        with self._lock:
            return max((save.local_s or 0.0 for save in self._saves.values()), default=0.0)

    def know(self, number: int, save: Save, **more: Any) -> None:
        with self._lock:
            updated = self._saves[number] = replace(save, **more)
            if updated.local_s is not None:
                self._costly[number] = None
            while len(self._saves) > SAVES_KEPT:
                oldest = next(iter(self._saves))
                del self._saves[oldest]
                self.busy.pop(oldest, None)
                self.drained.pop(oldest, None)
        self._note(number, updated)

    def _note(self, number: int, save: Save) -> None:
        """Write all facts of a save for the report, which uses the last note of a save."""
        facts = (
            save.block_s, save.waited_s, save.local_s, save.durable_s,
            save.lost_s, save.lost_to_durable_s,
        )  # fmt: skip
        times = " ".join("-" if fact is None else f"{fact:.6f}" for fact in facts)
        end = "failed" if save.error else "skipped" if save.is_skipped else "good"
        with self._lock:
            self._n_notes += 1
            said = f"{self._n_notes} {int(self.begin_unix_s * 1e9)} {number} {save.step}"
        recorder.note(
            "save",
            f"{said} {int(save.begin_unix_s * 1e9)} {end} {int(save.is_first)} "
            f"{'-' if save.size_bytes is None else save.size_bytes} {times} "
            f"{'blocking' if save.is_blocking else 'background'}",
        )

    def note_life(self, **facts: Any) -> None:
        """Note the start or the end of a Checkpointer; a killed training has no end."""
        recorder.note("checkpointer", json.dumps({"life": int(self.begin_unix_s * 1e9)} | facts))

    def note_costs(self, has_both: bool) -> None:
        """Note the lost time of the last saves, as soon as later steps have ended.  has_both: there
        are two tiers."""
        if not recorder.is_recording():
            return
        wanted = list(self._costly)[-SAVES_COSTED:]
        for number, save in self.with_lost(wanted):
            if save.lost_s is None and save.lost_to_durable_s is None:
                continue
            self._note(number, save)
            is_all = save.lost_to_durable_s is not None
            if (save.lost_s is not None and is_all) or not has_both:
                self._costly.pop(number, None)
        for number in list(self._costly)[:-SAVES_COSTED]:
            self._costly.pop(number, None)

    def with_lost(self, numbers: list[int]) -> list[tuple[int, Save]]:
        with self._lock:
            saves = [(number, self._saves[number]) for number in numbers if number in self._saves]
        ends, busy = list(self.steps), [*self.busy.values(), *self.drained.values()]

        def lost(save: Save, stretch: tuple[float, float] | None) -> float | None:
            if stretch is None or save.block_s is None or save.local_s is None:
                return None
            return lost_s(ends, *stretch, busy, block_s=save.block_s, local_s=save.local_s)

        return [
            (
                number,
                replace(
                    save,
                    lost_s=lost(save, self.busy.get(number)),
                    lost_to_durable_s=lost(save, self.drained.get(number)),
                ),
            )
            for number, save in saves
        ]

    def at_risk(self, backlog: int) -> AtRisk:
        """Return the work that would be lost if the node died now.  backlog: the number of saves
        that are not durable."""
        # Not through self.saves: the lost time of each save takes a walk over all steps.
        with self._lock:
            saves = [save for save in self._saves.values() if save.durable_s is not None]
        if not saves:
            return AtRisk(None, time.time() - self.begin_unix_s, backlog)
        newest = max(saves, key=lambda save: save.begin_unix_s)
        return AtRisk(newest.step, time.time() - newest.begin_unix_s, backlog)

    def last_bytes(self) -> int:
        """Return the size of the last save, including the values other than tensors."""
        sizes = [save.size_bytes for save in self._saves.values() if save.size_bytes]
        return sizes[-1] if sizes else 0


class _Ticking(Protocol):
    def tick(self) -> None: ...


def watch_steps(target: weakref.ref[_Ticking]) -> Callable[[], None]:
    """Call tick() after each step of the first optimizer to step.  Return a function that ends the
    calls."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return lambda: None
    from torch.optim.optimizer import register_optimizer_step_post_hook

    seen: list[Any] = []

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        saver = target()
        if saver is None:
            return
        if not seen or seen[0]() is None:
            seen[:] = [weakref.ref(optimizer)]
        if seen[0]() is optimizer:
            saver.tick()

    hook = register_optimizer_step_post_hook(stepped)
    return lambda: hook.remove()
