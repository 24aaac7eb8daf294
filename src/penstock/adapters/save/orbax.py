"""Orbax's steps, drained to a slow tier, and the step to restore.

    steps = TieredSteps(fast, slow)
    found = steps.latest()                      # (folder, step) or None
    manager = ocp.CheckpointManager(fast, ...)
    state = ocp.CheckpointManager(found.folder).restore(found.step) if found else state
    ...
    manager.save(step, args=...)
    steps.finished(manager)                     # now and then, and at the end

Orbax writes and names its files; nothing of it is imported or patched here.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import SaveError
from penstock.save.drain.adopting import adopt_folder
from penstock.save.drain.retention import Keep, full_said
from penstock.save.drain.tiered import Tiers, claim_for_process, drain_beside
from penstock.save.find.formats import find
from penstock.save.manifest import INSIDE
from penstock.save.verify import verify

__all__ = ["Step", "TieredSteps"]

log = logging.getLogger("penstock.save")
AnyPath = str | os.PathLike[str]


class Step(NamedTuple):
    """A step to restore.  folder: for a CheckpointManager.  step: the step's number."""

    folder: Path
    step: int


class TieredSteps:
    """Drains the steps of a CheckpointManager in the folder fast.  keep, drain: see Checkpointer.
    Of several processes only the first makes this object."""

    def __init__(
        self, fast: AnyPath, slow: AnyPath, *, keep: Keep | None = None, drain: str | None = None
    ) -> None:
        self._tiers = Tiers.of(fast, slow)
        self._fast = Path(self._tiers.root)
        self._fast.mkdir(parents=True, exist_ok=True)
        self._places = (fast, slow, keep, drain)
        claim_for_process(self._fast)
        drain_beside(*self._places)

    def latest(self, level: str = "full") -> Step | None:
        """Return the newest whole step on any tier; None: there is none.

        Orbax itself takes the highest number, and raises if the step is not whole.  Raises
        SaveError: another run's step has the same name, and Orbax would restore it.
        """
        chosen = self._tiers.choose(level, lambda checkpoint: checkpoint.kind == "orbax")
        if chosen.path is None or chosen.step is None:
            return None
        path, step = chosen.path, chosen.step
        # The drain uses such a name if another run's step has the number; other names are Orbax's.
        if re.fullmatch(rf"{step}\.\d+", path.name):
            path = self._under_its_number(path, step)
        return Step(path.parent, step)

    def _under_its_number(self, path: Path, step: int) -> Path:
        """Return a checked copy on the fast tier, which appears at once."""
        wanted = self._fast / str(step)
        if wanted.exists():
            raise SaveError(
                f"{path} is the newest whole checkpoint, of step {step}, and Orbax would restore "
                f"{wanted}, which is another one: move {wanted} away"
            )
        self._tiers.fetch_as(path, wanted)
        return wanted

    def finished(self, manager: Any) -> list[int]:
        """Wait until Orbax has written its steps, sync all files (Orbax omits the small files), and
        start the drain.  Return the new steps.

        A step an earlier run left unfinished, as after a power cut, stays as it is.  Raises
        TierError.
        """
        with full_said(self._fast):
            manager.wait_until_finished()
        new = [step for step in map(int, manager.all_steps()) if self._is_new(step)]
        assert self._tiers.fast is not None
        there = (
            {checkpoint.name: checkpoint for checkpoint in find(self._tiers.fast)} if new else {}
        )
        for step in list(new):
            step_there = there.get(str(step))
            problems = (
                verify(step_there, "sample").problems if step_there is not None else ("not there",)
            )
            if problems:
                log.warning("step %d of %s is not whole: %s", step, self._fast, problems[0])
                new.remove(step)
            else:
                adopt_folder(self._fast / str(step), step, "orbax")
        drain_beside(*self._places)
        return new

    def _is_new(self, step: int) -> bool:
        folder = self._fast / str(step)
        return folder.is_dir() and not (folder / INSIDE).exists()
