"""Ask a running job to record or to pause, and wait for the processes to answer.

A process answers in its log: recording, or paused.  Knows logs and the page of requests; knows no
report and no screen.
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
    """The processes of a run, by pid, after a request.

    answered: have carried out the request.  silent: have mapped the page and not answered in time.
    deaf: recorded and alive, and have not mapped the page, because no step or batch has begun since
    the start; the next step, if any, carries out the request.  All empty: the last process ended
    meanwhile.  s: the seconds waited.
    """

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
    """Send a request; wait at most timeout_s until every process with the mapped page has answered.

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
        if asked == control.PAUSE:  # a process forked in a pause has no log and records nothing
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
    """Return the latest log header of each process alive."""
    headers: dict[int, Header] = {}
    for entry in os.scandir(folder):
        if not is_log_name(entry.name):
            continue
        try:
            header = read_header(entry.path)
        except LogError:  # the log is being made
            continue
        if header.state in ("running", "stopped") and is_alive(header):
            earlier = headers.get(header.pid)
            if earlier is None or earlier.start_ns < header.start_ns:
                headers[header.pid] = header
    return headers
