"""A drain of a burst buffer that is killed, and files that seem old.  For the tests of the burst
buffer."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from burstkills import AT_ONCE
from penstock.save.burst import Burst

__all__ = ["is_drained_before", "make_old"]


def make_old(fast: Path) -> None:
    """What lies on the tier: files and links that are new may be a running program's."""
    for path in (*(fast / "burst/data").iterdir(), *(fast / "burst/home").iterdir()):
        os.utime(path, (0, 0), follow_symlinks=False)


def is_drained_before(fast: Path, step: int) -> bool:
    """False: the drain was killed just before its step'th change of a name."""
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
