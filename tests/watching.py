"""Watch a recorded job from the first log to the end.  For the tests of the live view."""

import subprocess
import sys
import time
from pathlib import Path

from penstock.explain.live import Live, Monitor

__all__ = ["watched_to_its_end"]


def watched_to_its_end(folder: Path, *words: str) -> list[Live]:
    """Record FOLDER/job.py with arguments `words` in FOLDER/run.  Return every look at the run."""
    command = [sys.executable, "-m", "penstock", "run", "-q", "-o", "run", sys.executable, "job.py"]
    with subprocess.Popen([*command, *words], cwd=folder) as process:
        while not list(folder.glob("run/*.events")):
            assert process.poll() is None
        monitor = Monitor(folder / "run")
        values = [monitor.look()]
        while values[-1].state != "over":
            values.append(monitor.look())
            time.sleep(0.1)  # a tenth of the interval of a watch
        assert process.wait() == 0
    return values
