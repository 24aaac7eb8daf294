"""A recorded job, watched from its first log to its end.  For the tests of the live view."""

import subprocess
import sys
import time
from pathlib import Path

from penstock.live import Live, Monitor

__all__ = ["watched_to_its_end"]


def watched_to_its_end(folder: Path, *words: str) -> list[Live]:
    """Record job.py of the folder with these arguments in FOLDER/run; every look at the run."""
    command = [sys.executable, "-m", "penstock", "run", "-q", "-o", "run", sys.executable, "job.py"]
    with subprocess.Popen([*command, *words], cwd=folder) as process:
        while not list(folder.glob("run/*.log")):
            assert process.poll() is None
        monitor = Monitor(folder / "run")
        values = [monitor.look()]
        while values[-1].state != "over":
            values.append(monitor.look())
            time.sleep(0.1)  # how often a watch looks, ten times as fast
        assert process.wait() == 0
    return values
