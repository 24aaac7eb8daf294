"""`penstock run --burst-buffer`: which files go to the tier, and the drain beside it."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from penstock.cli.shell import PROGRESS_AFTER_S, Progress, ended_like_ctrl_c, say, short
from penstock.errors import PenstockError, TierError

if TYPE_CHECKING:
    from penstock.save.burst import BurstDrain

__all__ = ["DrainedBeside", "burst_of"]


def burst_of(tier: str, patterns: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """The folder that checkpoints go to first, and which files do.  Ends here if it cannot be."""
    from penstock.registry import look, tier_of
    from penstock.save.burst import PATTERNS, entries, led_elsewhere, prepare
    from penstock.views.paper import Paper

    if any(not one.strip("*/") or ":" in one for one in patterns):
        raise click.UsageError(
            "--burst-pattern is the end of a path, as '*.npy', or a folder on the way, as 'ckpt-*/'"
        )
    path = Path(tier).expanduser()
    if "/" not in tier:
        try:
            there = tier_of(tier)
        except TierError as error:
            if not path.is_dir():
                raise
            raise TierError(f"{error}; the folder of this name here is ./{tier}") from error
        look(there)
        path = there.path
    folder = prepare(path)
    if Path.cwd().stat().st_dev == folder.stat().st_dev:
        say(f"{path} is on the device of this folder: checkpoints that go here gain nothing by it")
    if not entries(path):  # the program would find no checkpoint there, and begin anew
        for said in led_elsewhere([Path.cwd()], path):
            say(Paper.clean(said))
    return folder, patterns or PATTERNS


class DrainedBeside(contextlib.AbstractContextManager["DrainedBeside"]):
    """A process that brings checkpoints to their paths, waited for when the program has ended.

    status: after that, 1 if something could not be brought there."""

    def __init__(self, tier: Path, folder: Path, budget: int, limit: int | None) -> None:
        from penstock import launch
        from penstock.save.burst import BurstDrain

        self.status = 0
        self._drain = BurstDrain(tier, limit, folder, launch.burst_owner(folder))
        self._environ = launch.environment(folder, budget, os.environ)

    def __enter__(self) -> Self:
        try:
            self._drain.start(self._environ)
        except PenstockError as error:
            say(f"{error}; afterwards: penstock save drain {short(Path(self._drain.fast))}")
            self.status = 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._drain.leave()
        tier = short(Path(self._drain.fast))
        try:
            if not _has_drained(self._drain):
                self.status = 1
        except KeyboardInterrupt:
            say(f"the drain goes on without us (pid {self._drain.pid}); {tier}/.penstock/drain.log")


def _has_drained(drain: BurstDrain) -> bool:
    """Waits for it, and whether it has brought all there is to its path."""
    from penstock.views.paper import Paper

    begun_s = time.monotonic()
    has_said = False
    with ended_like_ctrl_c(), Progress("draining", is_of_bytes=True) as bar:
        while (ended := drain.wait(0.2)) is None:
            status = drain.status()
            if status is None or not status.backlog:
                continue
            if not has_said and time.monotonic() - begun_s > PROGRESS_AFTER_S:
                has_said = True
                n = f"{status.backlog_bytes / 1e6:,.1f} MB of checkpoints"
                say(f"{n} are on the fast tier only; waiting for the drain, Ctrl-C leaves it alone")
            bar.advance(status.done_bytes, max(1, status.total_bytes), status.current or "draining")
    status = drain.status()
    if status is not None and status.warning:
        say(Paper.clean(status.warning))
    if ended:
        log = Path(drain.fast) / ".penstock/drain.log"
        again = f"penstock save drain {short(Path(drain.fast))}"
        say(f"not all checkpoints were drained: {log} says why; {again}")
    return not ended
