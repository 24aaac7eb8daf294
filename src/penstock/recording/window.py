"""Ask a running job to record or to pause, and wait for the processes to answer.

A process answers in its log: recording, or not.  Knows logs and the page; knows no report and no
screen.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import LogError, RunError
from penstock.log.header import Header, is_alive, read_header
from penstock.log.texts import is_log_name
from penstock.recording import control

__all__ = ["Answer", "window"]

STATES = {control.RECORD: "running", control.PAUSE: "stopped"}
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """Processes by pid.  answered: they do what was asked.  silent: they look at the page and have
    not answered in time.  deaf: recorded, alive, and have not looked at it yet: they have not
    reached a step or a batch, or never will; the next step they take does what was asked.  All
    empty: the last process ended meanwhile."""

    answered: tuple[int, ...]
    silent: tuple[int, ...]
    deaf: tuple[int, ...]
    s: float


def window(
    folder: str | os.PathLike[str],
    asked: int,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """Asks, and waits until every process that looks at the page has answered, at most timeout_s.

    asked: control.RECORD or control.PAUSE.  Raises RunError: the run is over, or cannot be asked.
    """
    if not _alive(folder):
        raise RunError(f"{folder}: no process of it is alive on this host; nothing was asked")
    begun_s = clock()
    control.ask(folder, asked)
    while True:
        headers = _alive(folder)
        looking = control.attending(folder)
        answered = {pid for pid, header in headers.items() if header.state == STATES[asked]}
        if asked == control.PAUSE:  # forked in a pause: no log, nothing recorded
            answered |= looking - headers.keys()
        silent = looking - answered
        waited_s = clock() - begun_s
        if not headers and not looking:
            return Answer((), (), (), waited_s)
        if waited_s >= timeout_s or (looking and not silent):
            answered &= looking
            deaf = headers.keys() - looking
            pids = [tuple(sorted(some)) for some in (answered, silent, deaf)]
            return Answer(pids[0], pids[1], pids[2], waited_s)
        sleep(LOOK_S)


def _alive(folder: str | os.PathLike[str]) -> dict[int, Header]:
    """The latest log of each process that is alive."""
    found: dict[int, Header] = {}
    for entry in os.scandir(folder):
        if not is_log_name(entry.name):
            continue
        try:
            header = read_header(entry.path)
        except LogError:  # being made
            continue
        if header.state in ("running", "stopped") and is_alive(header):
            known = found.get(header.pid)
            if known is None or known.start_ns < header.start_ns:
                found[header.pid] = header
    return found
