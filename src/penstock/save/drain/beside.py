"""Run a drain beside a program, in a separate process."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import TierError
from penstock.installed import with_package
from penstock.places.stores import LocalStore, open_store
from penstock.safe import drafts
from penstock.save.commit import STATE
from penstock.save.drain.drainer import apart
from penstock.save.drain.retention import Keep
from penstock.save.drain.working import GRACE_S, DrainStatus, read_status

__all__ = ["Drain"]


@dataclass(slots=True)
class Drain:
    """Run a drain in a separate process beside the training, and at most grace_s longer.

    fast, slow: the tiers.  limit_bps: bytes per second.  run: the folder of a run; the drain pauses
    while the data wait of the run rises.  The drain's output goes to STATE/drain.log on the fast
    tier.
    """

    fast: str | os.PathLike[str]
    slow: str | os.PathLike[str]
    limit_bps: float | None = None
    concurrency: int = 2
    keep: Keep | None = None
    run: str | os.PathLike[str] | None = None
    grace_s: float = GRACE_S
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def command(self) -> list[str]:
        """Return the command of start()."""
        words = [sys.executable, "-m", "penstock", "save", "drain", "--watch"]
        words += ["--follow", str(os.getpid()), "--grace", f"{self.grace_s:g}s"]
        # The adapters report another run's checkpoints, and go on with an earlier job's.
        words += ["--concurrency", str(self.concurrency), "--share-slow"]
        if self.limit_bps:
            words += ["--limit", f"{int(self.limit_bps)}B/s"]
        if self.run is not None:
            words += ["--run", os.fspath(self.run)]
        if self.keep is not None:
            words += ["--keep-fast", str(self.keep.fast), "--every", str(self.keep.every)]
            words += ["--keep-last", str(self.keep.last)] if self.keep.last is not None else []
            words += ["--best", self.keep.best] if self.keep.best else []
            words += ["--best-n", str(self.keep.best_n)]
            words += ["--foreign"] if self.keep.foreign else []
        return [*words, "--", os.fspath(self.fast), os.fspath(self.slow)]

    def start(self) -> None:
        """Start the process.  Raises TierError: the fast tier is absent, or the process cannot be
        started; SaveError: one tier is inside the other."""
        apart(LocalStore(self.fast), open_store(self.slow))
        folder = Path(self.fast) / STATE
        try:
            folder.mkdir(exist_ok=True)
            with drafts.append(folder / "drain.log") as log:
                self._process = subprocess.Popen(
                    self.command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=with_package(os.environ),
                    start_new_session=True,  # Ctrl-C in the terminal must not end the drain
                )
        except OSError as error:
            raise TierError(f"{folder}: {error.strerror}; no drain was started") from error

    def status(self) -> DrainStatus | None:
        """Return the last status of the drain; None: no status yet."""
        return read_status(self.fast)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def how_ended(self) -> str:
        """Return how the process ended, for messages; an empty string while the process lives."""
        status = self._process.poll() if self._process is not None else None
        if status is None:
            return "" if self._process is not None else "it was not started"
        return f"killed by signal {-status}" if status < 0 else f"exit status {status}"

    def stop(self, timeout_s: float = 30.0) -> int | None:
        """End the drain after the pieces under way; the next drain resumes half-copied files.
        Return the exit status; None: the drain was not started, or had to be killed."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None
