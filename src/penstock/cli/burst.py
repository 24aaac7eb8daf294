"""`penstock run --burst-buffer`: the files for the tier, and the drain beside the program."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from penstock.cli.shell import PROGRESS_AFTER_S, ProgressBar, ended_like_ctrl_c, say, short
from penstock.errors import PenstockError, TierError

if TYPE_CHECKING:
    from penstock.save.burst.drain import BurstDrain
    from penstock.save.drain.working import DrainStatus

__all__ = ["UNFINISHED", "DrainedBeside", "burst_of"]

UNFINISHED = 75  # exit status after --wait-at-most has expired; EX_TEMPFAIL of sysexits.h
STOPPING_S = 30.0  # longer than the drain needs to copy a piece
MOST_GRACE_S = 86_400.0  # the limit of shell.duration()
MOST_NAMED = 3
REASONS = {"full": "the slow tier is full", "absent": "the slow tier is not there"}


def burst_of(tier: str, patterns: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """Return the folder for new checkpoints, and the patterns of their names.  Exits if the tier is
    unusable."""
    from penstock.places.registry import look, tier_of
    from penstock.save.burst.file import entries
    from penstock.save.burst.mend import led_elsewhere
    from penstock.save.burst.tier import PATTERNS, prepare
    from penstock.views.paper import Paper

    if any(not pattern.strip("*/") or ":" in pattern for pattern in patterns):
        raise click.UsageError(
            "--burst-pattern is the end of a path, as '*.npy', or a folder on the way, as 'ckpt-*/'"
        )
    path = Path(tier).expanduser()
    if "/" not in tier:
        try:
            there = tier_of(tier)
        except TierError as error:
            remark = "the folder of this name here is" if path.is_dir() else "write a folder as"
            raise TierError(f"{error}; {remark} ./{tier}") from error
        look(there)
        path = there.path
    folder = prepare(path)
    if Path.cwd().stat().st_dev == folder.stat().st_dev:
        say(f"{path} is on the device of this folder: checkpoints in this folder gain nothing")
    if not entries(path):  # the program would find no checkpoint there, and begin from step 0
        for said in led_elsewhere([Path.cwd()], path):
            say(Paper.clean(said))
    return folder, patterns or PATTERNS


class DrainedBeside(contextlib.AbstractContextManager["DrainedBeside"]):
    """A process that drains checkpoints to their paths; the context exit waits for the drain.

    wait_s: longest wait in seconds; None: until the drain has ended.  status: set at exit; 1 if a
    file could not be drained, UNFINISHED if wait_s expired first.
    """

    def __init__(
        self, tier: Path, folder: Path, budget: int, limit: int | None, wait_s: float | None = None
    ) -> None:
        from penstock.recording import launch
        from penstock.save.burst.drain import BurstDrain

        self.status = 0
        self._wait_s = wait_s
        # The drain must not end by itself before wait_s expires.
        grace_s = None if wait_s is None else min(MOST_GRACE_S, wait_s + 2 * STOPPING_S)
        self._drain = BurstDrain(tier, limit, folder, launch.burst_owner(folder), grace_s)
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
            self.status = _await_drain(self._drain, self._wait_s) or self.status
        except KeyboardInterrupt:
            say(f"the drain goes on without us (pid {self._drain.pid}); {tier}/.penstock/drain.log")
            self._say_left()

    def _say_left(self) -> None:
        status = self._drain.status()
        if status is not None and status.backlog:
            say(f"{_at_risk(status)}; {_why(status)}")


def _await_drain(drain: BurstDrain, wait_s: float | None) -> int:
    """Wait for the drain and report why the drain has not ended.  Return 0 if all files were
    drained."""
    from penstock.views.paper import Paper

    begun_s, begun_ns = time.monotonic(), time.time_ns()
    has_said, reason, is_late = False, "", False
    with ended_like_ctrl_c(), ProgressBar("draining", is_of_bytes=True) as bar:
        while (ended := drain.wait(0.2)) is None:
            waited_s = time.monotonic() - begun_s
            if wait_s is not None and waited_s >= wait_s:
                is_late = True
                drain.stop()
                ended = drain.wait(STOPPING_S)
                break
            status = drain.status()
            if status is None or not status.backlog or status.updated_unix_ns < begun_ns:
                continue
            if status.error and status.reason != reason:
                has_said, reason = True, status.reason
                say(f"{_at_risk(status)}; {_why(status)}; waiting, Ctrl-C leaves it to the drain")
            elif not has_said and waited_s > PROGRESS_AFTER_S:
                has_said = True
                say(f"{_at_risk(status)}; waiting for the drain, Ctrl-C leaves it alone")
            bar.advance(status.done_bytes, max(1, status.total_bytes), status.current or "draining")
    status = drain.status()
    if status is not None and status.warning:
        say(Paper.clean(status.warning))
    if not (ended or is_late):
        return 0
    tier = short(Path(drain.fast))
    is_known = status is not None and bool(status.backlog)
    left = _at_risk(status) if status is not None and is_known else "not all was drained"
    if is_late:
        say(f"{left}; {_why(status)}; not done in {wait_s:g} s: penstock save recover {tier}")
        return UNFINISHED
    say(f"not all checkpoints were drained: {left}; {_why(status)}; penstock save drain {tier}")
    return 1


def _at_risk(status: DrainStatus) -> str:
    """Return a sentence with the names and bytes of files on the fast tier only."""
    from penstock.views.paper import Paper

    named = ", ".join(short(Path(name)) for name in status.backlog[:MOST_NAMED])
    n_files = len(status.backlog)
    more = f" and {n_files - MOST_NAMED:,} more" if n_files > MOST_NAMED else ""
    n_bytes = f"{status.backlog_bytes / 1e6:,.1f} MB of checkpoints in {n_files:,} file"
    s = "" if n_files == 1 else "s"
    return Paper.clean(f"{n_bytes}{s} are on the fast tier only ({named}{more})")


def _why(status: DrainStatus | None) -> str:
    from penstock.views.paper import Paper

    if status is None:
        return "the drain has not told anything"
    if not status.error:
        return "the drain was still copying"
    return Paper.clean(": ".join(filter(None, (REASONS.get(status.reason, ""), status.error))))
