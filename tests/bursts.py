"""Kill a burst-buffer drain at a chosen step, and make files look old.

For the tests of the burst buffer.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from burstkills import AT_ONCE
from penstock.save.burst.home import Burst

__all__ = ["is_drained_before", "make_old"]


def make_old(fast: Path) -> None:
    """Set old times on files and links of the tier: new files may belong to a running program."""
    for path in (*(fast / "burst/data").iterdir(), *(fast / "burst/home").iterdir()):
        os.utime(path, (0, 0), follow_symlinks=False)


def is_drained_before(fast: Path, step: int) -> bool:
    """Drain once and return True; return False if killed just before name change number `step`."""
    child = os.fork()
    if not child:
        seen = 0

        def count(event: str, words: Any) -> None:
            nonlocal seen
            if event in ("os.rename", "os.remove", "os.symlink", "os.chmod", "os.utime"):
                seen += 1
                if seen == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        with Burst(fast, AT_ONCE) as drain:
            sys.addaudithook(count)
            drain._round()
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0
