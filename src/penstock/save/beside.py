"""A drain beside a program, in a process of its own."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import TierError
from penstock.places.stores import LocalStore, open_store
from penstock.safe import drafts
from penstock.save.commit import (
    STATE,
)
from penstock.save.drain import apart
from penstock.save.retention import Keep
from penstock.save.working import (
    GRACE_S,
    DrainStatus,
    read_status,
)
from penstock.save.writer import with_package

__all__ = ["Drain"]


@dataclass(slots=True)
class Drain:
    """A drain in a process of its own, beside the training; outlives it by at most grace_s.

    fast, slow: the tiers.  limit_bps: bytes a second.  run: a run's folder: the drain pauses while
    that run's data wait rises.  Its words go to STATE/drain.log on the fast tier.
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
        """What start() runs."""
        words = [sys.executable, "-m", "penstock", "save", "drain", "--watch"]
        words += ["--follow", str(os.getpid()), "--grace", f"{self.grace_s:g}s"]
        words += ["--concurrency", str(self.concurrency)]
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
        """Raises TierError: the fast tier is not there."""
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
                    env=with_package(),
                    start_new_session=True,  # Ctrl-C in the training's terminal is not for it
                )
        except OSError as error:
            raise TierError(f"{folder}: {error.strerror}; no drain was started") from error

    def status(self) -> DrainStatus | None:
        """What it said last; None before its first word."""
        return read_status(self.fast)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def how_ended(self) -> str:
        """For messages; empty while it is alive."""
        status = self._process.poll() if self._process is not None else None
        if status is None:
            return "" if self._process is not None else "it was not started"
        return f"killed by signal {-status}" if status < 0 else f"exit status {status}"

    def stop(self, timeout_s: float = 30.0) -> int | None:
        """Ends it after the pieces under way; what is half copied is taken up next time.  Its exit
        status; None: it was not started, or had to be killed."""
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
