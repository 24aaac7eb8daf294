"""`penstock run --burst-buffer`: which files go to the tier, and the drain beside it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.shell import PROGRESS_AFTER_S, Progress, ended_like_ctrl_c, say, short
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.save.burst import BurstDrain

__all__ = ["burst_of", "drained_beside"]


def burst_of(tier: str, patterns: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """The folder that checkpoints go to first, and which files do.  Ends here if it cannot be."""
    from penstock.registry import look, tier_of
    from penstock.save.burst import PATTERNS, prepare

    if any(not one.strip("*/") or ":" in one for one in patterns):
        raise click.UsageError(
            "--burst-pattern is the end of a path, as '*.npy', or a folder on the way, as 'ckpt-*/'"
        )
    path = Path(tier).expanduser()
    if "/" not in tier:
        there = tier_of(tier)
        look(there)
        path = there.path
    folder = prepare(path)
    if Path.cwd().stat().st_dev == folder.stat().st_dev:
        say(f"{path} is on the device of this folder: checkpoints that go here gain nothing by it")
    return folder, patterns or PATTERNS


@contextlib.contextmanager
def drained_beside(tier: Path, folder: Path, budget: int, limit: int | None) -> Iterator[None]:
    """A process that brings checkpoints to their paths, waited for when the program has ended."""
    from penstock import launch
    from penstock.save.burst import BurstDrain

    drain = BurstDrain(tier, limit, folder, launch.burst_owner(folder))
    try:
        drain.start(launch.environment(folder, budget, os.environ))
    except PenstockError as error:
        say(f"{error}; afterwards: penstock save drain {short(tier)}")
    try:
        yield
    finally:
        drain.leave()
        try:
            _wait_for(drain)
        except KeyboardInterrupt:
            say(
                f"the drain goes on without us (pid {drain.pid}); {short(tier)}/.penstock/drain.log"
            )


def _wait_for(drain: BurstDrain) -> None:
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
        say(status.warning)
    if ended:
        log = Path(drain.fast) / ".penstock/drain.log"
        again = f"penstock save drain {short(Path(drain.fast))}"
        say(f"not all checkpoints were drained: {log} says why; {again}")
