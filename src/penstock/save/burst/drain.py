"""The drain of a burst buffer beside a program, and after it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import TierError
from penstock.installed import with_package
from penstock.places.stores import check_state
from penstock.safe import drafts
from penstock.save.burst.home import Burst
from penstock.save.commit import STATE
from penstock.save.drain.neighbours import HEARD, RUNNING, hold, is_running
from penstock.save.drain.working import LOOK_S, DrainSettings, DrainStatus, read_status

__all__ = ["BurstDrain", "finish"]

STALE_S = 5 * LOOK_S  # a drain updates the status every second


@dataclass(slots=True)
class BurstDrain:
    """The drain in a separate process, beside the program that `penstock run` starts.

    The drain ends when all files are drained and `leave()` was called or the calling process has
    ended.  limit_bps: bytes per second.  run: the run's folder; the drain pauses while the run's
    data wait rises.  owner: see Burst.  grace_s: how many seconds the drain retries failing files;
    None: the default of `penstock save drain`.
    """

    fast: str | os.PathLike[str]
    limit_bps: float | None = None
    run: str | os.PathLike[str] | None = None
    owner: str = ""
    grace_s: float | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _running: int = field(default=-1, repr=False)

    def start(self, environ: Mapping[str, str]) -> None:
        """Start the drain's process.  Raises TierError."""
        words = [sys.executable, "-m", "penstock", "save", "drain", "--watch", "--follow-input"]
        if self.limit_bps:
            words += ["--limit", f"{int(self.limit_bps)}B/s"]
        if self.run is not None:
            words += ["--run", os.fspath(self.run)]
        if self.owner:
            words += ["--owner", self.owner]
        if self.grace_s is not None:
            words += ["--grace", f"{self.grace_s}s"]
        folder = Path(os.path.realpath(self.fast)) / STATE
        try:
            check_state(folder.parent)
            folder.mkdir(exist_ok=True)
            if self.owner:  # early: a running drain may bring files before our drain listens
                drafts.append(folder / f"{HEARD}{self.owner}").close()
                self._running = hold(folder / f"{RUNNING}{self.owner}")
            with drafts.append(folder / "drain.log") as log:
                self._process = subprocess.Popen(
                    [*words, "--", os.fspath(self.fast)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C in the terminal must not end the drain
                    env=with_package(environ),
                )
        except OSError as error:
            raise TierError(f"{folder}: {error.strerror}; no drain was started") from error

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def leave(self) -> None:
        """Announce the end of the program: no new files will come."""
        if self._running >= 0:
            os.close(self._running)
            self._running = -1
            is_running(Path(os.path.realpath(self.fast)), self.owner)  # removes the stale mark
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def stop(self) -> None:
        """Stop the drain after the piece being copied; the tier stays unchanged."""
        if self._process is not None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit status; None: the drain is still running after timeout_s."""
        if self._process is None:
            return 0
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def status(self) -> DrainStatus | None:
        """Return the status of the own drain, or of the drain before; None: no current status."""
        status = read_status(os.path.realpath(self.fast))
        if status is None or status.pid == self.pid:
            return status
        return status if time.time_ns() - status.updated_unix_ns < STALE_S * 1e9 else None


def finish(
    fast: str | os.PathLike[str],
    settings: DrainSettings | None = None,
    *,
    listener: Callable[[DrainStatus], None] = lambda status: None,
    drainer: Callable[[Burst], None] = lambda drainer: None,
) -> tuple[DrainStatus, list[str]]:
    """Drain the files that a run has left on a tier.

    Return the status, and a message for each file not drained.
    drainer: receives the Burst, to stop the drain.  Raises SaveError: a drain is running;
    TierError, Stopped.
    """
    with Burst(fast, settings, listener=listener) as working:
        drainer(working)
        failed = working.once()
    return working.status, failed
